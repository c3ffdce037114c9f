// Calls to the server: JSON requests, streamed chat answers, and the engine's state.
'use strict';

class ApiFailure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;  // 0: the server could not be reached
  }
}

const api = (() => {
  const kKeySlot = 'droidspeak.api-key';
  const kSystemPrompt = 'You are a helpful assistant. Read the documents and do what the user asks.';
  let key = sessionStorage.getItem(kKeySlot) || '';

  function setKey(value) {
    key = value.trim();
    sessionStorage.setItem(kKeySlot, key);
  }

  async function call(path, options = {}) {
    const headers = {...options.headers};
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, {...options, headers, cache: 'no-store'});
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiFailure('The server cannot be reached. Is it still running?', 0);
    }
    if (response.ok) return response;
    throw await failureOf(response);
  }

  async function failureOf(response) {
    const body = await response.json().catch(() => null);
    let message = body?.error?.message || `The server answered with status ${response.status}.`;
    if (response.status === 401) message += ' Enter the API key at the top of the page.';
    return new ApiFailure(message, response.status);
  }

  // The data of each server-sent event, parsed, until [DONE].
  async function* serverEvents(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = '';
    try {
      for (;;) {
        const {value, done} = await reader.read();
        if (done) throw new ApiFailure('The answer broke off: the server closed the connection.', 0);
        pending += value.replaceAll('\r\n', '\n');
        const events = pending.split('\n\n');
        pending = events.pop();
        for (const event of events) {
          const data = event.split('\n').filter((line) => line.startsWith('data:'))
                            .map((line) => line.slice(5).trim()).join('\n');
          if (data === '[DONE]') return;
          if (data) yield JSON.parse(data);
        }
      }
    } catch (error) {
      if (error instanceof TypeError) {
        throw new ApiFailure('The connection to the server was lost.', 0);
      }
      throw error;
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  // The layout that plan books are measured with.
  function messages(context, question) {
    const user = `${context}\n\n${question ? `Question: ${question}` : ''}`;
    return [{role: 'system', content: kSystemPrompt}, {role: 'user', content: user}];
  }

  // Streams one answer. `onText` gets each piece, `onFirst` the milliseconds until the first one.
  // Returns {droidspeak, usage, finish}.
  async function chat(body, {signal, onText = () => {}, onFirst = () => {}}) {
    const begin = performance.now();
    const response = await call('/v1/chat/completions', {
      method: 'POST',
      signal,
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({temperature: 0, stream: true, stream_options: {include_usage: true}, ...body}),
    });
    const result = {droidspeak: null, usage: null, finish: null};
    let hasBegun = false;
    for await (const event of serverEvents(response)) {
      if (event.error) throw new ApiFailure(event.error.message, 500);
      const choice = event.choices?.[0];
      if (choice && !hasBegun) {
        hasBegun = true;
        onFirst(performance.now() - begin);
      }
      if (choice?.delta?.content) onText(choice.delta.content);
      result.finish = choice?.finish_reason || result.finish;
      result.droidspeak = event.droidspeak || result.droidspeak;
      result.usage = event.usage || result.usage;
    }
    return result;
  }

  async function state() {
    const raw = await (await call('/v1/droidspeak/state')).json();
    return {
      family: raw.families?.[0] || {name: '', device: '', variants: []},
      planBooks: raw.plan_books || [],
      caches: raw.caches || {},
      queue: raw.queue || {running: 0, waiting: 0},
      kv: raw.kv || {blocks_used: 0, blocks_total: 0},
      health: raw.draining ? 'draining' : raw.healthy === false ? 'unhealthy' : 'healthy',
    };
  }

  return {chat, state, messages, setKey, key: () => key};
})();
