// Cards of the cache tiers in the family view: host memory and disk, and others with the links they are reached by.
'use strict';

const tierCards = (() => {
  const {element, count, bytes, duration} = dom;
  const kTitles = {host: 'Host memory', disk: 'Disk', peer: 'Other servers', remote: 'Remote store'};
  // Shown for those that are not in use.
  const kAdvice = {
    host: 'Start the server with --cache-memory to keep caches.',
    disk: 'Start the server with --cache-dir and --cache-disk to keep caches on disk too.',
  };

  function tiersOf({tiers: listed = []}) {
    const missing = Object.keys(kAdvice).filter((name) => !listed.some((tier) => tier.name === name));
    return [...listed, ...missing.map((name) => ({name}))];
  }

  function linkRow(link) {
    const speed = link.bytes_per_second > 0 ? `${bytes(link.bytes_per_second)}/s` : 'speed not measured';
    const trip = link.round_trip_ms > 0 ? `${duration(link.round_trip_ms)} round trip` : 'round trip not measured';
    return element('li', {'data-up': link.up ? 'yes' : 'no'}, element('code', {}, link.address),
                   ` ${link.up ? 'up' : 'DOWN'}, ${trip}, ${speed}, ${count(link.failures)} failures`);
  }

  function factsOf(tier) {
    return [
      ['Entries', count(tier.entries)], ['Hits', count(tier.hits)],
      ['Misses', tier.misses === undefined ? null : count(tier.misses)], ['Evictions', count(tier.evictions)],
      ['Read', bytes(tier.bytes_read)], ['Written', bytes(tier.bytes_written)],
    ].filter(([, value]) => value !== null);
  }

  function card(tier, meter) {
    const title = kTitles[tier.name] || tier.name;
    const links = tier.links || [];
    const isOff = !tier.capacity_bytes && !links.length && !tier.entries;
    let usage = 'not in use';
    if (tier.capacity_bytes) usage = `${bytes(tier.bytes)} of ${bytes(tier.capacity_bytes)}`;
    else if (!isOff) usage = tier.bytes ? bytes(tier.bytes) : `${links.length} links`;
    const list = element('dl', {class: 'facts'});
    if (!isOff) dom.facts(list, factsOf(tier));
    return element('article', {class: 'panel tier', 'data-tier': tier.name, 'aria-label': title},
                   element('div', {class: 'row'}, element('h4', {}, title), element('span', {class: 'note'}, usage)),
                   tier.capacity_bytes ? meter(tier.bytes, tier.capacity_bytes, `${title} in use`) : null,
                   isOff ? element('p', {class: 'note'}, kAdvice[tier.name] || '') : list,
                   links.length ? element('ul', {class: 'links'}, links.map(linkRow)) : null);
  }

  const cards = (caches, meter) => tiersOf(caches).map((tier) => card(tier, meter));

  return {cards};
})();
