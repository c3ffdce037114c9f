// The heat map of a plan book: one cell for each recomputed block [b, c), raw or translated.
'use strict';

const heatMap = (() => {
  const {byId, element, svg, precise, percent} = dom;
  const kSide = 434;  // of the square of cells
  const kMargin = 26;
  // Dark to bright with even steps of lightness, readable on light and dark ground.
  const kStops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function colour(share) {
    const at = Math.min(Math.max(share, 0), 1) * (kStops.length - 1);
    const low = Math.min(Math.floor(at), kStops.length - 2);
    const mix = kStops[low].map((part, index) => Math.round(part + (at - low) * (kStops[low + 1][index] - part)));
    return `rgb(${mix.join(' ')})`;
  }

  // Below this share of the largest KL all cells look alike: else the near-zero ones take all colours.
  const kKlRange = 1 / 50;

  // Share 1 (bright) is good: low KL on a logarithmic scale, high agreement on a linear one.
  function scaleOf(cells, measure) {
    const floor = Math.max(...cells.map((cell) => cell.kl)) * kKlRange || 1;
    const place = (cell) => measure === 'kl' ? -Math.log(Math.max(cell.kl, floor)) : cell.agreement;
    const places = cells.map(place);
    const low = Math.min(...places);
    const high = Math.max(...places);
    return (cell) => high > low ? (place(cell) - low) / (high - low) : 1;
  }

  const key = (b, c) => `${b},${c}`;

  function describe(cell, marks) {
    const mark = marks.get(key(cell.b, cell.c));
    const layers = cell.c - cell.b;
    const block = layers ? `layers ${cell.b} to ${cell.c - 1} recomputed (${layers})` : 'nothing recomputed';
    return `${block}: KL ${precise(cell.kl)}, agreement ${percent(cell.agreement)}` +
        (mark ? `, ${mark === 'chosen' ? 'the plan that auto chooses' : 'on the frontier'}` : '');
  }

  // Where things lie in the drawing: b to the right, c upwards, layers 0..numLayers on both.
  function geometryOf(numLayers) {
    const cell = kSide / (numLayers + 1);
    return {cell, x: (b) => kMargin + b * cell, y: (c) => kMargin + (numLayers - c) * cell, end: kMargin + kSide};
  }

  function axes(numLayers, {cell, x, y, end}) {
    const step = numLayers > 40 ? 8 : numLayers > 12 ? 4 : 1;
    const texts = [];
    for (let layer = 0; layer <= numLayers; layer += step) {
      texts.push(svg('text', {x: x(layer) + cell / 2, y: end + 12, 'text-anchor': 'middle'}, String(layer)),
                 svg('text', {x: kMargin - 6, y: y(layer) + cell / 2 + 3, 'text-anchor': 'end'}, String(layer)));
    }
    texts.push(svg('text', {x: end, y: end + 26, 'text-anchor': 'end'}, 'first recomputed layer b \u2192'),
               svg('text', {x: 2, y: kMargin - 12}, '\u2191 end c'));
    return texts;
  }

  function grid(cells, numLayers, scale, marks) {
    const geometry = geometryOf(numLayers);
    const size = geometry.cell - 1;
    const rects = cells.map((cell) => svg('rect', {
      x: geometry.x(cell.b), y: geometry.y(cell.c), width: size, height: size, rx: 2, fill: colour(scale(cell)),
      class: marks.get(key(cell.b, cell.c)) || null, 'data-cell': key(cell.b, cell.c),
    }));
    // Outlined cells last, so that no neighbour covers them.
    rects.sort((one, other) => one.hasAttribute('class') - other.hasAttribute('class'));
    return svg('svg', {
      viewBox: `0 0 ${geometry.end + 4} ${geometry.end + 30}`, role: 'application', tabindex: 0,
      'aria-roledescription': 'heat map', 'aria-describedby': 'heat-readout',
      'aria-label': 'Heat map of recomputed blocks. Arrow keys move from cell to cell.',
    }, rects, axes(numLayers, geometry));
  }

  function legend(cells, measure) {
    const values = cells.map((cell) => cell[measure]);
    const text = measure === 'kl' ? precise : percent;
    const low = Math.min(...values);
    const high = Math.max(...values);
    const [bad, good] = measure === 'kl' ? [high, Math.max(low, high * kKlRange)] : [low, high];
    const colours = kStops.map((stop) => `rgb(${stop.join(' ')})`).join(', ');
    return element('div', {class: 'legend'}, element('span', {}, text(bad)),
                   element('span', {class: 'ramp', style: {backgroundImage: `linear-gradient(90deg, ${colours})`}}),
                   element('span', {}, text(good)), element('span', {class: 'mark chosen'}, 'auto chooses'),
                   element('span', {class: 'mark frontier'}, 'frontier'));
  }

  function table(cells) {
    const cellOf = (name, value) => element(name, {class: 'number'}, String(value));
    const row = (name, values) => element('tr', {}, values.map((value) => cellOf(name, value)));
    const rows = cells.map((cell) =>
        row('td', [cell.b, cell.c, cell.c - cell.b, precise(cell.kl), percent(cell.agreement)]));
    return element('table', {}, element('thead', {}, row('th', ['b', 'c', 'Recomputed', 'KL', 'Agreement'])),
                   element('tbody', {}, rows));
  }

  // Pointer and arrow keys choose the cell that the line below the map describes.
  function makeInteractive(map, cells, marks) {
    const byPlace = new Map(cells.map((cell) => [key(cell.b, cell.c), cell]));
    let current = cells.find((cell) => marks.get(key(cell.b, cell.c)) === 'chosen') || cells[0];
    const select = (cell) => {
      if (!cell) return;
      map.querySelector('.current')?.classList.remove('current');
      current = cell;
      map.querySelector(`[data-cell="${key(cell.b, cell.c)}"]`).classList.add('current');
      byId('heat-readout').textContent = describe(cell, marks);
    };
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]};
    map.addEventListener('keydown', (event) => {
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      select(byPlace.get(key(current.b + move[0], current.c + move[1])));
    });
    map.addEventListener('pointermove', (event) => {
      const place = event.target.getAttribute('data-cell');
      if (place && place !== key(current.b, current.c)) select(byPlace.get(place));
    });
    select(current);
  }

  // Cells of frontier plans that recompute one block, and no tokens besides.
  function marksOf(book, chosen, isTranslated) {
    const marks = new Map();
    for (const entry of book.frontier) {
      if (entry.a || entry.looked_at_share || entry.translated !== isTranslated) continue;
      marks.set(key(entry.b, entry.c), entry === chosen ? 'chosen' : 'frontier');
    }
    return marks;
  }

  function draw(book, chosen, {isTranslated, measure}) {
    const cells = book.heat_map.filter((cell) => cell.translated === isTranslated);
    if (!cells.length) {
      byId('heat').replaceChildren(element('p', {class: 'empty'}, 'Not measured for this pair.'));
      byId('heat-readout').textContent = '';
      byId('heat-table').replaceChildren();
      return;
    }
    const marks = marksOf(book, chosen, isTranslated);
    const map = grid(cells, book.num_layers, scaleOf(cells, measure), marks);
    byId('heat').replaceChildren(map, legend(cells, measure));
    byId('heat-table').replaceChildren(table(cells));
    makeInteractive(map, cells, marks);
  }

  return {draw};
})();
