// The server's /metrics as numbers, and samples of them over time.
'use strict';

const metrics = (() => {
  const kKept = 600;
  const samples = [];

  const unescaped = (text) => text.replace(/\\(.)/g, (_, letter) => letter === 'n' ? '\n' : letter);

  // [{name, labels, value}] of Prometheus' text format.
  function parse(text) {
    const series = [];
    for (const line of text.split('\n')) {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (!found) continue;
      const labels = {};
      for (const [, name, value] of (found[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[name] = unescaped(value);
      }
      series.push({name: found[1], labels, value: Number(found[3])});
    }
    return series;
  }

  const sum = (series, name) =>
      series.filter((one) => one.name === name).reduce((total, {value}) => total + value, 0);

  // Counters since the server started.
  function read(series, at) {
    return {
      at,
      queries: sum(series, 'vllm:prefix_cache_queries_total'),
      hits: sum(series, 'vllm:prefix_cache_hits_total'),
      shared: sum(series, 'droidspeak_share_tokens_reused_total'),
      ttftSum: sum(series, 'vllm:time_to_first_token_seconds_sum'),
      ttftCount: sum(series, 'vllm:time_to_first_token_seconds_count'),
    };
  }

  // Who took how much over from whom.
  function pairs(series) {
    const tokensOf = (labels) => series.find((one) => one.name === 'droidspeak_share_tokens_reused_total' &&
        one.labels.sender === labels.sender && one.labels.receiver === labels.receiver)?.value;
    return series.filter((one) => one.name === 'droidspeak_share_hits_total')
        .map(({labels, value}) => ({...labels, hits: value, tokens: tokensOf(labels)}));
  }

  // Asks once. A server that was started again counts from the beginning.
  async function sample() {
    const series = parse(await api.metrics());
    const now = read(series, Date.now());
    if (samples.length && now.queries < samples.at(-1).queries) samples.length = 0;
    samples.push(now);
    if (samples.length > kKept) samples.shift();
    return {now, pairs: pairs(series)};
  }

  // What happened between one sample and the next, where a prompt was read at all.
  function intervals() {
    return samples.slice(1).map((after, index) => {
      const before = samples[index];
      const queries = after.queries - before.queries;
      const answers = after.ttftCount - before.ttftCount;
      return {
        at: after.at,
        queries,
        hitRate: queries > 0 ? (after.hits - before.hits) / queries : null,
        sharedRate: queries > 0 ? (after.shared - before.shared) / queries : null,
        ttftMs: answers > 0 ? 1000 * (after.ttftSum - before.ttftSum) / answers : null,
        answers,
      };
    }).filter(({queries, answers}) => queries > 0 || answers > 0);
  }

  return {parse, sample, intervals};
})();
