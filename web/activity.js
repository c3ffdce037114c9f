// The activity view: hit rates and times to the first token as they were sampled here, and who has read what.
'use strict';

const activity = (() => {
  const {byId, element, count, percent, duration} = dom;
  const charts = {};
  let variants = [];
  let isRefused = false;  // the metrics are not for this key

  // Chart.js has no scale for times of its own: seconds before now, so all are below zero.
  const agoText = (seconds) => seconds > -1 ? 'now' : seconds > -120 ? `${Math.round(-seconds)} s ago`
      : seconds > -7200 ? `${Math.round(-seconds / 60)} min ago` : `${Math.round(-seconds / 3600)} h ago`;

  function options(title, text, numTicks) {
    const muted = dom.themeColour('muted');
    const line = dom.themeColour('line');
    const grid = {color: line, borderColor: line};
    return {
      responsive: true, maintainAspectRatio: false, animation: false,
      scales: {
        x: {type: 'linear', max: 0, suggestedMin: -60, grid, ticks: {color: muted, callback: agoText, maxTicksLimit: numTicks, maxRotation: 0}},
        y: {beginAtZero: true, grid, title: {display: true, text: title, color: muted}, ticks: {color: muted, callback: text}},
      },
      plugins: {
        legend: {labels: {color: muted, usePointStyle: true, boxWidth: 6, boxHeight: 6}},
        tooltip: {callbacks: {
          label: ({raw, dataset}) => `${raw.label || dataset.label}: ${text(raw.y)}, ${agoText(raw.x)}`,
        }},
      },
    };
  }

  function series(label, points, colourName, look) {
    const colour = dom.themeColour(colourName);
    return {label, data: points, backgroundColor: colour, borderColor: colour, borderWidth: 2, pointRadius: 3, ...look};
  }

  function drawChart(id, datasets, title, text) {
    byId('activity-no-charts').hidden = Boolean(window.Chart);
    if (!window.Chart) return;
    const shown = datasets.filter(({data}) => data.length);
    byId(`${id}-empty`).hidden = shown.length > 0;
    const look = options(title, text, byId(id).parentElement.clientWidth < 420 ? 4 : 6);
    if (charts[id]) {
      Object.assign(charts[id], {options: look});
      charts[id].data.datasets = shown;
      charts[id].update();
      return;
    }
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    charts[id] = new Chart(byId(id), {type: 'scatter', data: {datasets: shown}, options: look});
  }

  function drawCharts() {
    const intervals = metrics.intervals();
    const now = Date.now();
    const secondsAgo = (at) => (at - now) / 1000;
    const points = (name) => intervals.filter((one) => one[name] !== null)
        .map((one) => ({x: secondsAgo(one.at), y: one[name]}));
    const turns = chatHistory.turns().filter((turn) => dom.isNumber(turn.report?.ttft_ms));
    const pointOf = (turn, y) => ({x: secondsAgo(turn.at), y, label: `${turn.variant}, ${turnViews.planText(turn)}`});
    const found = turns.filter(({promptTokens}) => promptTokens > 0)
        .map((turn) => pointOf(turn, turn.cachedTokens / turn.promptTokens));
    drawChart('hit-chart', [
      series('found in caches', points('hitRate'), 'accent', {showLine: true}),
      series('of it from other variants', points('sharedRate'), 'droidspeak', {showLine: true, pointStyle: 'rect'}),
      series('turns here', found, 'reuse', {pointRadius: 5, pointStyle: 'triangle'}),
    ], 'Share of prompt tokens', (value) => percent(value, 0));
    const turnPoint = (turn) => pointOf(turn, turn.report.ttft_ms);
    const isShared = (turn) => Boolean(turn.report.sender);
    drawChart('ttft-chart', [
      series('all requests, mean', points('ttftMs'), 'full', {showLine: true}),
      series('turns here, shared', turns.filter(isShared).map(turnPoint), 'droidspeak', {pointRadius: 5, pointStyle: 'rect'}),
      series('turns here, others', turns.filter((turn) => !isShared(turn)).map(turnPoint), 'reuse', {pointRadius: 5, pointStyle: 'triangle'}),
    ], 'Time to first token', duration);
    fillSamples(intervals);
  }

  // Cells look like the heads of their columns.
  function fillRows(id, rows, whenEmpty) {
    const heads = [...byId(id).tHead.rows[0].cells];
    const row = (cells) => element('tr', {}, cells.map((cell, index) => index === 0
        ? element('th', {scope: 'row'}, cell) : element('td', {class: heads[index].className || null}, cell)));
    const empty = () => element('tr', {}, element('td', {colspan: heads.length, class: 'empty'}, whenEmpty));
    byId(id).tBodies[0].replaceChildren(...(rows.length ? rows.map(row) : [empty()]));
  }

  function fillSamples(intervals) {
    fillRows('samples', intervals.slice(-50).reverse().map((one) => [
      new Date(one.at).toLocaleTimeString('en-GB'), count(one.queries), percent(one.hitRate), percent(one.sharedRate),
      count(one.answers), duration(one.ttftMs),
    ]), 'No prompt was read while this view was open.');
  }

  // From the turns themselves: whoever answers one has read all before it.
  function fillReaders() {
    const turns = chatHistory.turns();
    const readTurn = (name) => turns.findLastIndex((turn) => turn.variant === name && turn.report);
    fillRows('readers', variants.map(({name}) => {
      const at = readTurn(name);
      if (at < 0) return [name, 'nothing of it', dom.kVoid, dom.kVoid];
      const turn = turns[at];
      return [name, at + 1 === turns.length ? 'all of it' : `up to turn ${at + 1} of ${turns.length}`,
              count(turn.promptTokens + (turn.completionTokens || 0)), turnViews.planText(turn)];
    }), 'No variants.');
  }

  function fillPairs(pairs) {
    pairs.sort((one, other) => other.tokens - one.tokens);
    fillRows('pairs-shared', pairs.map(({sender, receiver, hits, tokens}) =>
        [receiver, sender, count(hits), count(tokens)]), 'No context was taken over from another variant yet.');
  }

  function showTotals({queries, hits, shared, ttftSum, ttftCount}) {
    dom.facts(byId('activity-totals'), [
      ['Prompt tokens', count(queries)],
      ['Found in caches', queries ? percent(hits / queries) : dom.kVoid],
      ['From other variants', queries ? percent(shared / queries) : dom.kVoid],
      ['Mean time to first token', ttftCount ? duration(1000 * ttftSum / ttftCount) : dom.kVoid],
    ]);
  }

  // Samples the server once and draws what there is; what is not shown to this key is said.
  async function update(state) {
    variants = state.family.variants;
    fillReaders();
    let problem = '';
    isRefused = false;
    try {
      const {now, pairs} = await metrics.sample();
      showTotals(now);
      fillPairs(pairs);
    } catch (error) {
      problem = error.message;
      isRefused = error.status === 401 || error.status === 403;
    }
    byId('activity-problem').hidden = !problem;
    byId('activity-problem').textContent = problem && `The server\u2019s metrics cannot be shown. ${problem}`;
    drawCharts();
  }

  // So that the charts know of turns while another view is open.
  function noteTurn() {
    if (isRefused) return;
    metrics.sample().catch((error) => { isRefused = error.status === 401 || error.status === 403; });
  }

  return {update, noteTurn, draw: drawCharts};
})();
