// The conversation as data, and where it is kept: in this browser alone. A turn is a question and what a variant
// answered, with what the server said about it.
'use strict';

const chatHistory = (() => {
  const kSlot = 'droidspeak.conversation';
  const kDefaults = {
    system: 'You are a helpful assistant.', temperature: 0.6, top_p: 0.95, top_k: 0, min_p: 0,
    repetition_penalty: 1, max_tokens: 256, seed: '', sharing: 'auto', measures: false,
  };
  let settings = {...kDefaults};
  let turns = [];

  const isText = (value) => typeof value === 'string';

  function isTurn(turn) {
    return turn && ['question', 'answer', 'variant', 'state', 'system'].every((name) => isText(turn[name]));
  }

  // What another version or a person has left there does no harm.
  function restore() {
    let kept = null;
    try {
      kept = JSON.parse(localStorage.getItem(kSlot));
    } catch (error) {
      kept = null;
    }
    for (const [name, value] of Object.entries(kDefaults)) {
      const old = kept?.settings?.[name];
      settings[name] = typeof old === typeof value || (name === 'seed' && Number.isInteger(old)) ? old : value;
    }
    turns = (Array.isArray(kept?.turns) ? kept.turns : []).filter(isTurn);
    for (const turn of turns) {
      if (turn.state === 'running') turn.state = 'stopped';
    }
  }

  // False where the browser has no room for it.
  function keep() {
    try {
      localStorage.setItem(kSlot, JSON.stringify({settings, turns}));
      return true;
    } catch (error) {
      return false;
    }
  }

  function clear() {
    turns = [];
    localStorage.removeItem(kSlot);
  }

  // A turn that failed, or was stopped before it said anything, is not part of what the next one reads.
  const counts = (turn) => turn.state === 'done' || (turn.state !== 'failed' && turn.answer !== '');

  // What the variant reads to answer `turn`.
  function messagesOf(turn) {
    const before = turns.slice(0, turns.includes(turn) ? turns.indexOf(turn) : turns.length).filter(counts);
    const said = before.flatMap((other) => [
      {role: 'user', content: other.question}, {role: 'assistant', content: other.answer},
    ]);
    const system = turn.system.trim() ? [{role: 'system', content: turn.system}] : [];
    return [...system, ...said, {role: 'user', content: turn.question}];
  }

  function newTurn(question, variant) {
    return {question, variant, system: settings.system, answer: '', state: 'running', at: Date.now()};
  }

  // The sampler's fields of a request; those that change nothing are left out.
  function sampling() {
    const body = {temperature: settings.temperature, max_tokens: settings.max_tokens, sharing: settings.sharing};
    for (const [name, neutral] of [['top_p', 1], ['top_k', 0], ['min_p', 0], ['repetition_penalty', 1]]) {
      if (settings[name] !== neutral) body[name] = settings[name];
    }
    if (settings.seed !== '') body.seed = settings.seed;
    return body;
  }

  return {restore, keep, clear, counts, messagesOf, newTurn, sampling, settings: () => settings,
          turns: () => turns, slot: kSlot};
})();
