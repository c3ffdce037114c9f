// The family view: load, caches by tier and variants, as the engine's state says.
'use strict';

const family = (() => {
  const {byId, element, svg, count, bytes} = dom;
  const kHistory = 60;  // samples in the small charts
  const history = {running: [], waiting: []};

  function remember(name, value) {
    history[name].push(value);
    if (history[name].length > kHistory) history[name].shift();
  }

  // The last two minutes as a line that ends at the right; before the first sample as after it.
  function sparkline(known) {
    const values = [...Array(kHistory - known.length).fill(known[0]), ...known];
    const top = Math.max(1, ...values);
    const points = values.map((value, index) => {
      const x = 100 * index / (kHistory - 1);
      return `${x.toFixed(1)},${(23 - 22 * value / top).toFixed(1)}`;
    });
    const line = svg('polyline', {points: points.join(' ')});
    const frame = {class: 'sparkline', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true'};
    return svg('svg', frame, line);
  }

  function meter(used, total, label) {
    const share = total > 0 ? Math.min(used / total, 1) : 0;
    return element('div', {class: 'meter', role: 'meter', 'aria-label': label, 'aria-valuemin': 0,
                           'aria-valuemax': 100, 'aria-valuenow': Math.round(100 * share),
                           'data-level': share > 0.9 ? 'high' : 'normal'},
                   element('span', {style: {width: `${100 * share}%`}}));
  }

  function tile(name, value, note, extra) {
    return element('div', {class: 'panel tile', 'data-tile': name.toLowerCase()},
                   element('span', {class: 'label'}, name), element('span', {class: 'big'}, value),
                   element('span', {class: 'note'}, note), extra);
  }

  function showLoad({queue, kv}) {
    byId('load').replaceChildren(
        tile('Running', count(queue.running), 'requests in the batch', sparkline(history.running)),
        tile('Waiting', count(queue.waiting), 'requests in the queue', sparkline(history.waiting)),
        tile('KV blocks', `${count(kv.blocks_used)} / ${count(kv.blocks_total)}`, 'paged memory in use',
             meter(kv.blocks_used, kv.blocks_total, 'KV blocks in use')));
  }

  function showCaches(caches) {
    if (!Object.keys(caches).length) {
      byId('tiers').replaceChildren(element('p', {class: 'note'}, 'Shown with the admin key: they count what all keys ask.'));
      byId('store-counters').textContent = '';
      return;
    }
    byId('tiers').replaceChildren(...tierCards.cards(caches, meter));
    byId('store-counters').textContent = [
      `Misses ${count(caches.misses || 0)}`, `damaged entries, treated as misses ${count(caches.damaged || 0)}`,
      `failed writes ${count(caches.write_errors || 0)}`,
    ].join(' \u00b7 ');
  }

  function update(state) {
    const {name, device, num_layers: layers, max_model_len: length, variants} = state.family;
    byId('family-name').textContent = name || 'Family';
    const facts = [`${variants.length} variants`, device, layers && `${layers} layers`,
                   length && `contexts up to ${count(length)} tokens`];
    byId('family-facts').textContent = facts.filter(Boolean).join(' \u00b7 ');
    remember('running', state.queue.running);
    remember('waiting', state.queue.waiting);
    showLoad(state);
    showCaches(state.caches);
    adapters.showVariants(variants);
  }

  return {update};
})();
