"""Reading `studies.toml` beside this module: texts, ways and columns of the studies."""

import tomllib
from pathlib import Path
from typing import Any

from neural_similarity_paper.recipes.adaptation import WAYS
from neural_similarity_paper.studies.adapt_study import Way

CONTENT = tomllib.loads(Path(__file__).with_name("studies.toml").read_text("utf-8"))


def study_fields(entry: str) -> dict[str, Any]:
    """The fields of `Study` that an entry of the file has."""
    content = CONTENT[entry]
    ways = {way: _read_way(way, **fields) for way, fields in content["ways"].items()}
    first, names = content.get("first_stage"), tuple(ways)
    trained = tuple(way for way, spec in ways.items() if spec.rates)
    columns = content.get("columns", {"": []}).items()
    return {
        "name": content.get("name", entry),
        "ways": ways,
        "stages": (names[:first], names[first:]) if first else (names,),
        "columns": {title: trained if own == ["*"] else tuple(own) for title, own in columns},
        **{key: content[key] for key in ("title", "note", "folder", "floor") if key in content},
    }


def _read_way(
    way: str, label: str = "", rates: list[str] | None = None, fixed: Any = None, **fields: Any
) -> Way:
    fields = {key: fields[key] for key in fields if key in Way._fields}  # Others: `restore`.
    rates = [way] if rates is None and fixed is None else rates or []
    return Way(label or WAYS[way][0], tuple(rates), fixed=fixed and tuple(fixed), **fields)
