// The playground: a sender reads a context, then a receiver answers three ways, one after another.
//
// What keeps the comparison fair: every run has salts of its own, so nothing of an earlier run helps. Full
// prefill has a second salt, so that its cache helps neither of the other two; those share the sender's salt,
// which is what lets them find its cache. DroidSpeak goes before plain reuse: "auto" may continue from what
// the receiver kept of an earlier plan, a plan asked for by name does not.
'use strict';

const playground = (() => {
  const {byId, element, duration, count} = dom;

  const kArms = [
    {id: 'full', title: 'Full prefill', about: 'The receiver reads everything itself.'},
    {id: 'reuse', title: 'Plain reuse', about: 'All layers of the sender\u2019s cache, as they are.'},
    {id: 'droidspeak', title: 'DroidSpeak', about: 'The sender\u2019s cache, critical layers recomputed.'},
  ];
  const kOrder = ['full', 'droidspeak', 'reuse'];

  let variants = [];
  let stopper = null;
  const cards = {};

  function build() {
    for (const arm of kArms) {
      const card = {
        value: element('span', {class: 'value'}, dom.kVoid),
        speedup: element('span', {class: 'pill', hidden: true}),
        fill: element('span', {class: 'fill'}),
        status: element('span', {class: 'status'}, 'idle'),
        text: element('p', {class: 'answer', 'aria-live': 'polite', 'aria-atomic': 'true', 'aria-busy': 'false'}),
        facts: element('dl', {class: 'facts'}),
      };
      byId('bars').append(element('div', {class: 'bar', 'data-arm': arm.id},
          element('span', {class: 'name'}, arm.title), element('span', {class: 'track'}, card.fill), card.value,
          card.speedup));
      card.root = element('article', {class: 'panel arm', 'data-arm': arm.id, 'data-state': 'idle',
                                      'aria-labelledby': `arm-${arm.id}`},
          element('div', {class: 'row'}, element('h3', {id: `arm-${arm.id}`}, arm.title), card.status),
          element('p', {class: 'note'}, arm.about), card.text, card.facts);
      byId('arms').append(card.root);
      cards[arm.id] = card;
    }
  }

  function setStatus(card, state, text) {
    card.root.dataset.state = state;
    card.status.textContent = text;
    card.text.setAttribute('aria-busy', String(state === 'running'));
  }

  function reset() {
    for (const card of Object.values(cards)) {
      card.value.textContent = dom.kVoid;
      card.speedup.hidden = true;
      card.fill.style.width = '0';
      card.text.textContent = '';
      card.facts.replaceChildren();
      card.ttft = card.answer = null;
      setStatus(card, 'waiting', 'waiting');
    }
    byId('verdict').hidden = true;
  }

  function drawBars() {
    const longest = Math.max(...Object.values(cards).map((card) => card.ttft || 0));
    const full = cards.full.ttft;
    for (const [id, card] of Object.entries(cards)) {
      if (card.ttft === null) continue;
      card.value.textContent = duration(card.ttft);
      card.fill.style.width = `${Math.max(100 * card.ttft / longest, 0.5)}%`;
      const isComparable = id !== 'full' && full && card.root.dataset.state === 'done';
      card.speedup.hidden = !isComparable;
      if (!isComparable) continue;
      card.speedup.textContent = `${(full / card.ttft).toFixed(1)}\u00d7`;
      card.speedup.dataset.gain = card.ttft < full ? 'yes' : 'no';
    }
  }

  // Shows the time that passes while the first token is awaited, until the returned function is called.
  function startClock(card) {
    const begin = performance.now();
    let frame = 0;
    const tick = () => {
      card.ttft = performance.now() - begin;
      drawBars();
      frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }

  function planText(arm, report, cachedTokens) {
    if (report.sender) return report.translated ? `${report.plan}, translated` : report.plan;
    if (arm === 'full') return 'full';
    return cachedTokens ? 'own prefix cache' : 'full: nothing could be reused';
  }

  function comparison(answer) {
    const full = cards.full.answer;
    if (full === null || full === undefined) return dom.kVoid;
    if (answer === full) return 'same words';
    const ours = answer.split(/\s+/);
    const theirs = full.split(/\s+/);
    const at = ours.findIndex((word, index) => word !== theirs[index]);
    return `differs from word ${(at < 0 ? ours.length : at) + 1}`;
  }

  function showResult(arm, result, clientMs) {
    const card = cards[arm];
    const report = result.droidspeak || {};
    if (dom.isNumber(report.ttft_ms)) card.ttft = report.ttft_ms;
    setStatus(card, 'done', result.finish === 'length' ? 'done, cut at max tokens' : 'done');
    if (!card.answer) card.text.textContent = '(no text)';
    const cachedTokens = result.usage?.prompt_tokens_details?.cached_tokens || 0;
    const reusedTokens = report.reused_tokens || cachedTokens;
    card.hasReused = reusedTokens > 0;
    dom.facts(card.facts, [
      ['Plan', planText(arm, report, cachedTokens)],
      ['Tokens reused', `${count(reusedTokens)} of ${count(result.usage?.prompt_tokens)}`],
      ['Layers recomputed', reusedTokens ? count(report.recomputed_layers) : 'all'],
      ['Tokens looked at', count(report.looked_at_tokens || 0)],
      ['TTFT, server', duration(report.ttft_ms)],
      ['TTFT, browser', duration(clientMs)],
      ['Against full prefill', arm === 'full' ? dom.kVoid : comparison(card.answer)],
    ]);
    drawBars();
    dom.announce(`${byId(`arm-${arm}`).textContent}: first token after ${duration(card.ttft)}.`);
  }

  async function runArm(arm, body, signal) {
    const card = cards[arm];
    setStatus(card, 'running', 'reading');
    card.answer = '';
    let clientMs = null;
    const stopClock = startClock(card);
    try {
      const result = await api.chat(body, {
        signal,
        onFirst: (ms) => {
          stopClock();
          clientMs = card.ttft = ms;
          card.status.textContent = 'answering';
          drawBars();
        },
        onText: (piece) => { card.text.textContent = card.answer += piece; },
      });
      showResult(arm, result, clientMs);
    } catch (error) {
      fail(card, error);
      throw error;
    } finally {
      stopClock();
    }
  }

  function fail(card, error) {
    card.ttft = card.answer = null;
    card.fill.style.width = '0';
    card.value.textContent = dom.kVoid;
    const isStopped = error.name === 'AbortError';
    setStatus(card, isStopped ? 'idle' : 'failed', isStopped ? 'stopped' : 'failed');
    if (!isStopped) card.text.textContent = error.message;
  }

  // What an arm's request asks for beside the prompt.
  function armFields(arm, sender, salt) {
    if (arm === 'full') return {sharing: 'off', cache_salt: `${salt}-full`};
    return {sharing: {sender, plan: arm === 'reuse' ? 'reuse' : 'auto'}, cache_salt: salt};
  }

  async function senderReads(sender, context, salt, signal) {
    const step = byId('sender-step');
    step.textContent = `${sender} reads the context\u2026`;
    const begin = performance.now();
    const {usage} = await api.chat(
        {model: sender, messages: api.messages(context, ''), max_tokens: 1, sharing: 'off', cache_salt: salt},
        {signal});
    step.textContent =
        `${sender} read ${count(usage?.prompt_tokens)} tokens in ${duration(performance.now() - begin)}`;
  }

  function showVerdict() {
    const {full, droidspeak} = cards;
    if (full.ttft === null || droidspeak.ttft === null) return;
    const factor = full.ttft / droidspeak.ttft;
    const isFaster = factor >= 1.05;
    let text = `DroidSpeak\u2019s first token came ${factor.toFixed(1)}\u00d7 sooner than full prefill\u2019s.`;
    if (!isFaster) text = 'On this context DroidSpeak was no faster than full prefill; longer ones gain more.';
    if (!droidspeak.hasReused) text = 'DroidSpeak computed everything itself: it found no cache and plan worth taking.';
    byId('verdict').dataset.gain = isFaster && droidspeak.hasReused ? 'yes' : 'no';
    byId('verdict').textContent = text;
    byId('verdict').hidden = false;
    dom.announce(text);
  }

  async function compare(signal) {
    const context = byId('context').value.trim();
    const sender = byId('sender').value;
    const salt = api.newSalt();
    const common = {
      model: byId('receiver').value,
      messages: api.messages(context, byId('question').value.trim()),
      max_tokens: Number(byId('max-tokens').value),
    };
    await senderReads(sender, context, salt, signal);
    for (const arm of kOrder) {
      try {
        await runArm(arm, {...common, ...armFields(arm, sender, salt)}, signal);
      } catch (error) {
        if (!(error instanceof ApiFailure) || error.status === 0) throw error;
        dom.showError(error);  // refused; the others may still answer
      }
    }
    showVerdict();
  }

  async function run() {
    stopper = new AbortController();
    dom.clearError();
    reset();
    byId('run').disabled = true;
    byId('stop').disabled = false;
    try {
      await compare(stopper.signal);
    } catch (error) {
      if (error.name !== 'AbortError') dom.showError(error);
      if (byId('sender-step').textContent.endsWith('\u2026')) byId('sender-step').textContent = 'Not measured.';
      for (const card of Object.values(cards)) {
        if (card.root.dataset.state === 'waiting') setStatus(card, 'idle', 'not run');
      }
    } finally {
      const hadFocus = document.activeElement === byId('stop');
      byId('run').disabled = false;
      byId('stop').disabled = true;
      if (hadFocus) byId('run').focus();
      stopper = null;
    }
  }

  const contextText = () => byId('context').value.trim();

  function showContextSize(counted) {
    const {length} = contextText();
    let text = length ? `${count(length)} characters` : '';
    if (counted?.isTooLong) text += ', longer than the context';
    else if (counted) text += `, ${count(counted.count)} of ${count(counted.limit)} tokens`;
    byId('context-size').textContent = text;
  }

  const recount = tokens.counter(
      () => contextText() && {prompt: contextText(), add_special_tokens: false}, showContextSize);

  function showPairNote() {
    const sender = byId('sender').value;
    const receiver = byId('receiver').value;
    const senders = variants.find(({name}) => name === receiver)?.takes_from || [];
    byId('pair-note').hidden = sender === receiver || senders.includes(sender);
    byId('pair-note').textContent =
        `No plan book was measured for ${sender} \u2192 ${receiver}, so the server will refuse to share between them.`;
  }

  // The pair to begin with: one that shares at the server's quality, the base as sender where it does, and of
  // those the one whose plan costs least.
  function firstPair(books) {
    const cost = (book) => Math.min(
        ...book.frontier.filter(({plan}) => plan === book.chosen).map((entry) => entry.relative_cost), 1);
    const isLoaded = ({sender, receiver}) =>
        variants.some(({name, takes_from: senders}) => name === receiver && senders?.includes(sender));
    const good = books.filter((book) => book.chosen && isLoaded(book));
    const root = variants.find(({parent}) => !parent)?.name;
    const rank = (book) => [book.sender === root ? 0 : 1, cost(book)];
    good.sort((one, other) => rank(one)[0] - rank(other)[0] || rank(one)[1] - rank(other)[1]);
    return good[0];
  }

  // Takes over the variants of a new state; keeps what the user chose.
  function update(state, books) {
    variants = state.family.variants;
    const names = variants.map((variant) => variant.name);
    const pair = firstPair(books);
    dom.fillSelect(byId('sender'), names, pair?.sender || names[0]);
    dom.fillSelect(byId('receiver'), names, pair?.receiver || names[1] || names[0]);
    showPairNote();
  }

  function init() {
    build();
    byId('example').addEventListener('click', () => {
      const paragraphs = byId('example-text').content.querySelectorAll('p');
      const texts = Array.from(paragraphs, (paragraph) => paragraph.textContent.trim().replace(/\s+/g, ' '));
      byId('question').value = texts.pop();
      byId('context').value = texts.join('\n\n');
      recount();
    });
    byId('context').addEventListener('input', recount);
    byId('sender').addEventListener('change', showPairNote);
    byId('receiver').addEventListener('change', showPairNote);
    byId('stop').addEventListener('click', () => stopper?.abort());
    byId('ask').addEventListener('submit', (event) => {
      event.preventDefault();
      if (!stopper) run();
    });
    byId('ask').addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) byId('ask').requestSubmit();
    });
    recount();
  }

  return {init, update};
})();
