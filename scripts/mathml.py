"""A Markdown extension: `$...$` and `$$...$$` become MathML, which browsers draw by themselves.

The site then needs no script and no network for its formulas.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<!\s)\$(?![\w$])"
BLOCK = re.compile(r"\$\$(.+)\$\$", re.DOTALL)


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], _data: str) -> Any:
        return self.md.htmlStash.store(convert(m[1])), m.start(0), m.end(0)


class _Block(BlockProcessor):
    def test(self, _parent: Element, block: str) -> bool:
        return BLOCK.fullmatch(block.strip()) is not None

    def run(self, parent: Element, blocks: list[str]) -> None:
        formula = blocks.pop(0).strip().removeprefix("$$").removesuffix("$$")
        stored = self.parser.md.htmlStash.store(convert(formula, display="block"))
        div = Element("div", {"class": "formula"})
        div.text = stored
        parent.append(div)


class MathML(Extension):
    """Formulas as MathML."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register both forms: after code, before escapes."""
        md.inlinePatterns.register(_Inline(INLINE, md), "mathml", 185)
        md.parser.blockprocessors.register(_Block(md.parser), "mathml", 75)


def makeExtension(**settings: Any) -> MathML:
    """What Markdown calls."""
    return MathML(**settings)
