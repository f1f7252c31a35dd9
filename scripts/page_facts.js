() => ({
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  links: [...document.querySelectorAll('a[href]')].map(a => a.href),
  ids: [...document.querySelectorAll('[id]')].map(e => e.id),
  empty: [...document.querySelectorAll('main img, body > section img')]
    .filter(i => i.complete && !i.naturalWidth).map(i => i.src),
  small: [...document.querySelectorAll('main img:not(.fit), body > section img')]
    .filter(i => i.clientWidth && i.clientWidth < 0.4 * i.naturalWidth).map(i => i.alt),
  broad: [...document.querySelectorAll('article img, article table')].filter(e => e.clientWidth)
    .filter(e => !/evidence/.test(location))
    .filter(e => e.getBoundingClientRect().width > e.closest('article').clientWidth + 1)
    .map(e => e.alt || e.textContent.trim().slice(0, 40)),
  flat: [...document.querySelectorAll('math')]
    .filter(m => !m.getBoundingClientRect().height).length,
  raw: [...document.querySelectorAll('article p, article li, article td')]
    .filter(e => !e.querySelector('code') && /\$[^$]+\$/.test(e.textContent))
    .map(e => e.textContent.slice(0, 60)),
})
