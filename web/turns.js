// One turn of the conversation on the screen: what was said, and how the prompt was read.
'use strict';

const turnViews = (() => {
  const {element, duration, count, percent} = dom;
  const kStates = {running: 'reading', done: 'done', stopped: 'stopped', failed: 'failed'};

  // What a variant has computed by a plan is its own from then on: it goes on from there, and recomputes nothing.
  const isKept = ({plan, recomputed_layers: layers, looked_at_tokens: looked}) => !['reuse', '0,0,0'].includes(plan) && !layers && !looked;

  function planText({report, cachedTokens}) {
    if (!report.sender) return cachedTokens ? 'own prefix cache' : 'full prefill';
    return `${report.plan}${report.translated ? ' translated' : ''} from ${report.sender}` +
        (isKept(report) ? ', kept from before' : '');
  }

  // What the plan book says this plan takes of a full prefill's time; null where it says nothing.
  function predictionOf({variant, report}, books) {
    const book = books.find(({sender, receiver}) => sender === report.sender && receiver === variant);
    const isSame = (entry) => entry.plan === report.plan && entry.translated === report.translated &&
        entry.recomputed_layers === report.recomputed_layers && !entry.looked_at_share === !report.looked_at_tokens;
    const entry = book?.frontier.find(isSame);
    return entry ? {share: entry.relative_cost, length: book.context_tokens_median} : null;
  }

  // Measured, predicted, or neither: it always says which.
  function againstFull(turn, books) {
    const {report, cachedTokens, fullMs} = turn;
    if (dom.isNumber(fullMs)) {
      const factor = fullMs / report.ttft_ms;
      const gain = factor >= 1 ? `${factor.toFixed(1)}\u00d7 sooner` : `${(1 / factor).toFixed(1)}\u00d7 later`;
      return `${duration(fullMs)} measured: ${gain}`;
    }
    if (!report.sender && !cachedTokens) return 'this was one';
    const predicted = report.sender && predictionOf(turn, books);
    if (!predicted) return 'not measured';
    return `${percent(predicted.share, 0)} of it predicted by the plan book (at ${count(predicted.length)} tokens)`;
  }

  function factsOf(turn, books) {
    const {report} = turn;
    return [
      ['Plan', planText(turn)],
      ['Tokens reused', `${count(report.reused_tokens || turn.cachedTokens)} of ${count(turn.promptTokens)}`],
      ['Layers recomputed', report.sender ? count(report.recomputed_layers) : null],
      ['Tokens looked at', count(report.looked_at_tokens || 0)],
      ['First token', duration(report.ttft_ms)],
      ['Without its cache', report.fallback?.after_tokens ? `behind token ${count(report.fallback.after_tokens)}` : null],
      ['Answer', `${count(turn.completionTokens)} ${turn.completionTokens === 1 ? 'token' : 'tokens'}`],
      ['Full prefill', againstFull(turn, books)],
    ].filter(([, value]) => value !== null);
  }

  function statusText(turn) {
    if (turn.state === 'running') return turn.answer ? 'answering' : 'reading';
    if (turn.state === 'done' && turn.finish === 'length') return 'done, cut at max tokens';
    return kStates[turn.state] || turn.state;
  }

  // A view of one turn. `on` has retry(turn) and measure(turn).
  function make(turn, number, on) {
    const title = `turn-${number}`;
    const view = {
      status: element('span', {class: 'status'}),
      answer: element('div', {class: 'answer markdown', 'aria-busy': 'false'}),
      facts: element('dl', {class: 'chips'}),
      retry: element('button', {type: 'button', class: 'quiet', 'data-action': 'retry'}, 'Retry'),
      measure: element('button', {type: 'button', class: 'quiet', 'data-action': 'measure'}, 'Measure full prefill'),
      variant: element('span', {}, turn.variant),
    };
    view.retry.addEventListener('click', () => on.retry(turn));
    view.measure.addEventListener('click', () => on.measure(turn));
    view.root = element('li', {class: 'turn', 'aria-labelledby': title},
        element('h3', {class: 'hidden', id: title}, `Turn ${number}`),
        element('div', {class: 'said you'}, element('h4', {}, 'You'), element('p', {}, turn.question)),
        element('div', {class: 'said variant'},
                element('div', {class: 'row'}, element('h4', {}, view.variant), view.status), view.answer, view.facts,
                element('div', {class: 'turn-actions'}, view.retry, view.measure)));
    let frame = 0;

    function showText() {
      cancelAnimationFrame(frame);
      frame = 0;
      if (turn.state === 'failed') {
        const failure = element('p', {class: 'failure'}, turn.error || 'No answer came.');
        view.answer.replaceChildren(...markdown.nodes(turn.answer), failure);
      } else if (!turn.answer && turn.state !== 'running') {
        const why = turn.state === 'stopped' ? 'Stopped before the first token.' : '(no text)';
        view.answer.replaceChildren(element('p', {class: 'note'}, why));
      } else {
        view.answer.replaceChildren(...markdown.nodes(turn.answer));
      }
    }

    // Pieces may come faster than the screen changes.
    view.addText = () => {
      view.status.textContent = statusText(turn);
      if (!frame) frame = requestAnimationFrame(showText);
    };

    view.update = ({books, isLast, isBusy}) => {
      view.root.dataset.state = turn.state;
      view.variant.textContent = turn.variant;
      view.status.textContent = statusText(turn) + (chatHistory.counts(turn) || turn.state === 'running'
          ? '' : ', not part of the conversation');
      view.answer.setAttribute('aria-busy', String(turn.state === 'running'));
      showText();
      dom.facts(view.facts, turn.report && turn.state !== 'running' ? factsOf(turn, books) : []);
      const hasReuse = turn.report && (turn.report.sender || turn.cachedTokens);
      view.retry.hidden = !isLast || turn.state === 'running';
      view.retry.disabled = view.measure.disabled = isBusy;
      view.measure.hidden = !hasReuse || dom.isNumber(turn.fullMs) || turn.state === 'running';
    };
    return view;
  }

  return {make, planText};
})();
