// The conversation: any variant answers any turn, and every turn shows how its prompt was read.
'use strict';

const conversation = (() => {
  const {byId, count} = dom;
  const kNumbers = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens'];
  const kNearEnd = 160;  // pixels from the end of the page within which it follows the answer
  let books = [];
  let views = [];
  let stopper = null;

  const fieldOf = (name) => byId(`chat-${name.replaceAll('_', '-')}`);

  function showAll() {
    const turns = chatHistory.turns();
    views.forEach((view, index) => view.update({books, isLast: index + 1 === turns.length, isBusy: stopper !== null}));
    byId('chat-empty').hidden = turns.length > 0;
    byId('chat-clear').disabled = !turns.length || stopper !== null;
    byId('chat-send').disabled = stopper !== null;
    byId('chat-stop').disabled = stopper === null;
  }

  function build() {
    views = chatHistory.turns().map((turn, index) => turnViews.make(turn, index + 1, {retry, measure}));
    byId('chat-log').replaceChildren(...views.map((view) => view.root));
    showAll();
  }

  function keep() {
    byId('chat-unkept').hidden = chatHistory.keep();
  }

  // The page follows the answer while its end is in sight.
  function following(change) {
    const {scrollHeight, scrollTop, clientHeight} = document.scrollingElement;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < kNearEnd;
    change();
    if (isAtEnd) window.scrollTo(0, document.scrollingElement.scrollHeight);
  }

  // Runs something that can be stopped and shows what goes wrong; one at a time.
  async function busy(work) {
    stopper = new AbortController();
    dom.clearError();
    showAll();
    try {
      await work(stopper.signal);
    } catch (error) {
      if (error.name !== 'AbortError') dom.showError(error);
      if (error.status === 0 || error.status === 401) app.reload();  // shows it at the top, too
    } finally {
      const hadFocus = document.activeElement === byId('chat-stop') || document.activeElement === document.body;
      stopper = null;
      following(showAll);
      if (hadFocus) byId('chat-question').focus();
      keep();
      recount();
      activity.noteTurn();
    }
  }

  function takeResult(turn, result) {
    turn.finish = result.finish;
    turn.report = result.droidspeak;
    turn.promptTokens = result.usage?.prompt_tokens;
    turn.cachedTokens = result.usage?.prompt_tokens_details?.cached_tokens || 0;
    turn.completionTokens = result.usage?.completion_tokens;
  }

  async function stream(turn, view, signal) {
    const body = {...chatHistory.sampling(), model: turn.variant, messages: chatHistory.messagesOf(turn)};
    try {
      const onText = (piece) => {
        turn.answer += piece;
        following(view.addText);
      };
      takeResult(turn, await api.chat(body, {signal, onText}));
      turn.state = 'done';
    } catch (error) {
      const isStopped = error.name === 'AbortError';
      turn.state = isStopped ? 'stopped' : 'failed';
      if (!isStopped) turn.error = error.message;
      throw error;
    }
  }

  async function measureTurn(turn, signal) {
    dom.announce('Measuring full prefill.');
    turn.fullMs = await api.measureFullPrefill({model: turn.variant, messages: chatHistory.messagesOf(turn)}, signal);
  }

  function announce(turn) {
    const text = views[chatHistory.turns().indexOf(turn)].answer.textContent;
    dom.announce(turn.state === 'done' ? `${turn.variant}: ${text}` : `${turn.variant} ${turn.state}. ${text}`);
  }

  function answerTurn(turn) {
    return busy(async (signal) => {
      const view = views[chatHistory.turns().indexOf(turn)];
      window.scrollTo(0, document.scrollingElement.scrollHeight);
      dom.announce(`${turn.variant} is answering.`);
      keep();
      try {
        await stream(turn, view, signal);
      } finally {
        following(showAll);
        announce(turn);
      }
      const hasReuse = turn.report && (turn.report.sender || turn.cachedTokens);
      if (chatHistory.settings().measures && hasReuse) await measureTurn(turn, signal);
    });
  }

  function retry(turn) {
    if (stopper || !readSettings()) return;
    const turns = chatHistory.turns();
    turns.pop();
    turns.push(chatHistory.newTurn(turn.question, byId('chat-variant').value));
    build();
    byId('chat-question').focus();
    answerTurn(turns.at(-1));
  }

  function measure(turn) {
    if (stopper) return;
    byId('chat-question').focus();  // the button goes away
    busy((signal) => measureTurn(turn, signal));
  }

  function send() {
    const field = byId('chat-question');
    const question = field.value.trim();
    if (stopper || !question || !byId('chat-variant').value || !readSettings()) return;
    const turn = chatHistory.newTurn(question, byId('chat-variant').value);
    chatHistory.turns().push(turn);
    field.value = '';
    build();
    field.focus();
    answerTurn(turn);
  }

  // False, and the fields shown, where one is out of its range.
  function readSettings() {
    if (!byId('chat-settings-form').checkValidity()) {
      byId('chat-settings').open = true;
      byId('chat-settings-form').reportValidity();
      return false;
    }
    const settings = chatHistory.settings();
    for (const name of kNumbers) settings[name] = Number(fieldOf(name).value);
    settings.seed = fieldOf('seed').value === '' ? '' : Number(fieldOf('seed').value);
    settings.system = byId('chat-system').value;
    settings.sharing = byId('chat-sharing').value;
    settings.measures = byId('chat-measures').checked;
    return true;
  }

  function showSettings() {
    const settings = chatHistory.settings();
    for (const name of [...kNumbers, 'seed']) fieldOf(name).value = settings[name];
    byId('chat-system').value = settings.system;
    byId('chat-sharing').value = settings.sharing;
    byId('chat-measures').checked = settings.measures;
  }

  function showSize(counted) {
    let text = '';
    if (counted?.isTooLong) text = 'Longer than the context: the server will refuse it.';
    else if (counted) text = `${count(counted.count)} of ${count(counted.limit)} tokens`;
    byId('chat-size').textContent = text;
  }

  const recount = tokens.counter(() => {
    const turn = {question: byId('chat-question').value.trim(), system: byId('chat-system').value};
    return {messages: chatHistory.messagesOf(turn), add_generation_prompt: true};
  }, showSize);

  function clear() {
    if (stopper) return;
    chatHistory.clear();
    build();
    byId('chat-unkept').hidden = true;
    byId('chat-question').focus();
    dom.announce('The conversation was deleted.');
    recount();
  }

  function update(state, newBooks) {
    const names = state.family.variants.map((variant) => variant.name);
    books = newBooks;
    dom.fillSelect(byId('chat-variant'), names, chatHistory.turns().at(-1)?.variant || names[0]);
    if (!stopper) showAll();
  }

  function onKey(event) {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  }

  function init() {
    chatHistory.restore();
    showSettings();
    build();
    byId('chat-form').addEventListener('submit', (event) => {
      event.preventDefault();
      send();
    });
    byId('chat-question').addEventListener('keydown', onKey);
    byId('chat-question').addEventListener('input', recount);
    byId('chat-settings-form').addEventListener('submit', (event) => event.preventDefault());
    byId('chat-settings-form').addEventListener('change', () => {
      if (readSettings()) keep();
      recount();
    });
    byId('view-conversation').addEventListener('keydown', (event) => {
      if (event.key === 'Escape') stopper?.abort();
    });
    byId('chat-stop').addEventListener('click', () => stopper?.abort());
    byId('chat-clear').addEventListener('click', clear);
    window.addEventListener('pagehide', () => {
      if (stopper) keep();  // what was said so far
    });
    // Another tab has spoken, or forgotten.
    window.addEventListener('storage', (event) => {
      if (stopper || ![chatHistory.slot, null].includes(event.key)) return;
      chatHistory.restore();
      build();
    });
  }

  return {init, update, recount};
})();
