// The plan book view: heat map, Pareto frontier, sensitivity and the frontier's table for one pair.
'use strict';

const planBooks = (() => {
  const {byId, element, svg, precise, percent, count} = dom;
  let books = [];
  let chart = null;

  const nameOf = (book) => `${book.sender} \u2192 ${book.receiver}`;
  const readOf = (entry) => `${entry.recomputed_layers} layers` +
      (entry.looked_at_share ? `, ${percent(entry.looked_at_share)} of the tokens` : '');
  const planOf = (entry) => entry.translated ? `${entry.plan} translated` : entry.plan;

  // What the server's own rule takes: the cheapest plan above its quality floor.
  function chosenOf(book) {
    const named = book.frontier.filter((entry) => entry.plan === book.chosen);
    return named.sort((one, other) => one.relative_cost - other.relative_cost)[0] || null;
  }

  const current = () => books.find((book) => nameOf(book) === byId('pair').value) || books[0];

  function showFacts(book, chosen) {
    const metric = book.metric && book.full_score !== null ? `${book.metric} ${percent(book.full_score)}` : 'none';
    dom.facts(byId('book-facts'), [
      ['Auto chooses', chosen ? planOf(chosen) : 'full prefill'],
      ['Measured on', `${book.data || dom.kVoid}, ${count(book.num_contexts)} contexts`],
      ['Context length', `${count(book.context_tokens_median)} tokens (median)`],
      ['Full prefill', metric],
    ]);
  }

  function drawHeatMap() {
    const book = current();
    const has = (isTranslated) => book.heat_map.some((cell) => cell.translated === isTranslated);
    for (const input of document.getElementsByName('heat-maps')) input.disabled = !has(input.value === 'translated');
    const picked = document.querySelector('input[name="heat-maps"]:checked:not(:disabled)');
    const fallback = has(true) ? 'translated' : 'raw';
    if (!picked) document.querySelector(`input[name="heat-maps"][value="${fallback}"]`).checked = true;
    heatMap.draw(book, chosenOf(book), {
      isTranslated: (picked ? picked.value : fallback) === 'translated',
      measure: document.querySelector('input[name="heat-value"]:checked').value,
    });
  }

  function series(label, entries, colourName, look) {
    const colour = dom.themeColour(colourName);
    const data = entries.map((entry) => ({x: entry.relative_cost, y: entry.kl, entry}));
    return {label, data, backgroundColor: colour, borderColor: colour, pointRadius: 5, pointHoverRadius: 8, ...look};
  }

  function allSeries(book, chosen) {
    const others = book.frontier.filter((entry) => entry !== chosen);
    return [
      series('auto chooses', chosen ? [chosen] : [], 'mark', {pointRadius: 8, pointStyle: 'rectRot'}),
      series('translated', others.filter((entry) => entry.translated), 'droidspeak', {pointStyle: 'circle'}),
      series('raw', others.filter((entry) => !entry.translated), 'reuse', {pointStyle: 'rect'}),
    ].filter(({data}) => data.length);
  }

  function chartOptions() {
    const text = dom.themeColour('muted');
    const line = dom.themeColour('line');
    const scale = (title) => ({
      type: 'linear', title: {display: true, text: title, color: text}, ticks: {color: text},
      grid: {color: line, borderColor: line}, beginAtZero: true,
    });
    return {
      responsive: true, maintainAspectRatio: false, animation: false,
      scales: {x: scale('Prefill time, share of full prefill'), y: scale('KL from full prefill (nats)')},
      plugins: {
        legend: {labels: {color: text, usePointStyle: true, boxWidth: 6, boxHeight: 6}},
        tooltip: {callbacks: {label: ({raw}) => `${planOf(raw.entry)}: ${readOf(raw.entry)}, KL ` +
            `${precise(raw.y)}, cost ${percent(raw.x, 0)}`}},
      },
    };
  }

  function drawPareto(book, chosen) {
    chart?.destroy();
    chart = null;
    byId('no-charts').hidden = Boolean(window.Chart);
    if (!window.Chart) return;
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    const data = {datasets: allSeries(book, chosen)};
    chart = new Chart(byId('pareto'), {type: 'scatter', data, options: chartOptions()});
  }

  function drawSensitivity(book) {
    const layers = book.sensitivity;
    if (!layers.length) {
      byId('sensitivity').replaceChildren(element('p', {class: 'empty'}, 'Not measured for this pair.'));
      return;
    }
    const top = Math.max(...layers.map((layer) => layer.kl + (layer.spread || 0))) || 1;
    const step = 1000 / layers.length;
    const y = (value) => 140 - 130 * Math.min(Math.max(value, 0), top) / top;
    const bars = layers.map(({layer, kl, spread = 0}, index) => {
      const middle = (index + 0.5) * step;
      const hasNumber = layers.length <= 40 || index % 4 === 0;
      return svg('g', {},
          svg('title', {}, `Layer ${layer}: KL ${precise(kl)} \u00b1 ${precise(spread)}`),
          svg('rect', {x: middle - 0.35 * step, y: y(kl), width: 0.7 * step, height: 140 - y(kl), rx: 3}),
          svg('line', {x1: middle, x2: middle, y1: y(kl + spread), y2: y(kl - spread)}),
          hasNumber ? svg('text', {x: middle, y: 156, 'text-anchor': 'middle'}, String(layer)) : null);
    });
    const worst = layers.reduce((one, other) => other.kl > one.kl ? other : one);
    byId('sensitivity').replaceChildren(svg('svg', {
      class: 'sensitivity', viewBox: '0 0 1000 164', role: 'img',
      'aria-label': `KL divergence of ${layers.length} layers; the most sensitive is layer ${worst.layer} ` +
          `with ${precise(worst.kl)}`,
    }, bars));
  }

  function fillFrontier(book, chosen) {
    const columns = ['Plan', 'Sender\u2019s cache', 'Recomputed', 'Cost', 'KL', 'Agreement', book.metric || 'Score',
                     'Quality'];
    const head = columns.map((name, index) => element('th', {scope: 'col', class: index > 1 ? 'number' : null}, name));
    byId('frontier').tHead.replaceChildren(element('tr', {}, head));
    byId('frontier').tBodies[0].replaceChildren(...book.frontier.map((entry) => {
      const isChosen = entry === chosen;
      const values = [`${entry.recomputed_layers} of ${book.num_layers}`, percent(entry.relative_cost, 0),
                      precise(entry.kl), percent(entry.agreement), percent(entry.score), percent(entry.quality)];
      return element('tr', {class: isChosen ? 'chosen' : null},
          element('th', {scope: 'row'}, element('code', {}, entry.plan),
                  isChosen ? element('span', {class: 'pill'}, 'auto') : null),
          element('td', {}, entry.translated ? 'translated' : 'raw'),
          values.map((value) => element('td', {class: 'number'}, value)));
    }));
  }

  function draw() {
    const book = current();
    if (!book) return;
    const chosen = chosenOf(book);
    showFacts(book, chosen);
    drawHeatMap();
    drawPareto(book, chosen);
    drawSensitivity(book);
    fillFrontier(book, chosen);
  }

  function update(newBooks) {
    books = newBooks;
    byId('plans-empty').hidden = books.length > 0;
    byId('plans-body').hidden = books.length === 0;
    const before = byId('pair').value;
    const names = books.map(nameOf);
    byId('pair').replaceChildren(...names.map((name) => element('option', {value: name}, name)));
    if (names.includes(before)) byId('pair').value = before;
    draw();
  }

  function init() {
    byId('pair').addEventListener('change', draw);
    for (const name of ['heat-maps', 'heat-value']) {
      for (const input of document.getElementsByName(name)) input.addEventListener('change', drawHeatMap);
    }
  }

  return {init, update, draw};
})();
