// Small means to build the page: elements, numbers for people, colours of the theme, messages.
'use strict';

const dom = (() => {
  const kSvg = 'http://www.w3.org/2000/svg';
  const kVoid = '\u2013';  // for what is not known

  const byId = (id) => document.getElementById(id);

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === 'style') Object.assign(node.style, value);
      else node.setAttribute(name, value === true ? '' : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  }

  // element('td', {class: 'number'}, 'text', node...)
  const element = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => fill(document.createElementNS(kSvg, name), attributes, children);

  function facts(list, pairs) {
    list.replaceChildren(...pairs.map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {}, value))));
  }

  // Keeps what is chosen where it is still there.
  function fillSelect(select, names, wanted) {
    if (Array.from(select.options, (option) => option.value).join('\n') === names.join('\n')) return;
    const chosen = names.includes(select.value) ? select.value : wanted;
    select.replaceChildren(...names.map((name) => element('option', {value: name}, name)));
    if (names.includes(chosen)) select.value = chosen;
  }

  const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
  const count = (value) => isNumber(value) ? value.toLocaleString('en') : kVoid;
  const percent = (value, digits = 1) => isNumber(value) ? `${(100 * value).toFixed(digits)} %` : kVoid;
  const precise = (value) => isNumber(value) ? (value === 0 ? '0' : value.toPrecision(3)) : kVoid;

  function duration(ms) {
    if (!isNumber(ms)) return kVoid;
    if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
    if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
    return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  }

  function bytes(value) {
    if (!isNumber(value)) return kVoid;
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      ++unit;
    }
    return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
  }

  // A colour of the style sheet as the browser resolves it for the theme in use.
  function themeColour(name) {
    const probe = element('span', {hidden: true, style: {color: `var(--${name})`}});
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  }

  function showError(error) {
    byId('alert-text').textContent = error.message || String(error);
    byId('alert').hidden = false;
  }

  function clearError() {
    byId('alert').hidden = true;
    byId('alert-text').textContent = '';
  }

  const announce = (text) => { byId('announcer').textContent = text; };

  return {byId, element, svg, facts, fillSelect, isNumber, count, percent, precise, duration, bytes, themeColour,
          showError, clearError, announce, kVoid};
})();
