// Calls to the server: streamed chat answers, token counts, adapters, metrics, plan books and the engine's state.
'use strict';

class ApiFailure extends Error {
  constructor(message, status, code = null) {
    super(message);
    this.status = status;  // 0: the server could not be reached
    this.code = code;      // the server's, where it gave one
  }
}

const api = (() => {
  const kKeySlot = 'droidspeak.api-key';
  const kAdminKeySlot = 'droidspeak.admin-key';
  const kSystemPrompt = 'You are a helpful assistant. Read the documents and do what the user asks.';
  let key = sessionStorage.getItem(kKeySlot) || '';
  let adminKey = sessionStorage.getItem(kAdminKeySlot) || '';

  function setKey(value) {
    key = value.trim();
    sessionStorage.setItem(kKeySlot, key);
  }

  function setAdminKey(value) {
    adminKey = value.trim();
    sessionStorage.setItem(kAdminKeySlot, adminKey);
  }

  // `asAdmin`: with the admin key, where one was entered.
  async function call(path, {asAdmin = false, ...options} = {}) {
    const headers = {...options.headers};
    const used = asAdmin && adminKey ? adminKey : key;
    if (used) headers.Authorization = `Bearer ${used}`;
    let response;
    try {
      response = await fetch(path, {cache: 'no-store', ...options, headers});
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiFailure('The server cannot be reached. Is it still running?', 0);
    }
    if (response.ok) return response;
    throw await failureOf(response, asAdmin);
  }

  async function failureOf(response, asAdmin) {
    const body = await response.json().catch(() => null);
    const {status} = response;
    let message = body?.error?.message || `The server answered with status ${status}.`;
    if (status === 401 || (status === 403 && asAdmin)) {
      message += asAdmin && (adminKey || status === 403) ? ' Enter the admin key in the Family view.' : ' Enter the API key at the top of the page.';
    }
    const wait = Number(response.headers.get('Retry-After'));
    if (wait > 0) message += ` Try again in ${wait} s.`;
    return new ApiFailure(message, status, body?.error?.code);
  }

  const post = (path, body, options = {}) => call(path, {
    method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body), ...options,
  });

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
    const response = await post(
        '/v1/chat/completions', {temperature: 0, stream: true, stream_options: {include_usage: true}, ...body}, {signal});
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

  // How many tokens {prompt} or {messages} are, and how many the context may have.
  async function countTokens(body, signal) {
    const {count, max_model_len: limit} = await (await post('/tokenize', body, {signal})).json();
    return {count, limit};
  }

  // Full prefill of a prompt, computed now: a salt of its own keeps every cache out of it. The time to the first token.
  async function measureFullPrefill(body, signal) {
    const {droidspeak} = await chat({...body, max_tokens: 1, sharing: 'off', cache_salt: newSalt()}, {signal});
    return droidspeak?.ttft_ms ?? null;
  }

  function newSalt() {
    const numbers = crypto.getRandomValues(new Uint32Array(3));
    return `page-${Array.from(numbers, (number) => number.toString(36)).join('')}`;
  }

  const loadAdapter = (fields) => post('/v1/load_lora_adapter', fields, {asAdmin: true});
  const unloadAdapter = (name) => post('/v1/unload_lora_adapter', {lora_name: name}, {asAdmin: true});

  const metrics = async () => (await call('/metrics', {asAdmin: true})).text();

  // Asked for again, it comes from the browser's cache while the server's tag is the same.
  async function planBooks() {
    const raw = await (await call('/v1/droidspeak/plan_books', {cache: 'no-cache'})).json();
    return (raw.plan_books || []).map((book) => ({frontier: [], heat_map: [], sensitivity: [], ...book}));
  }

  // With the admin key it has figures of all keys; a wrong one must not keep the rest away.
  async function rawState() {
    try {
      return await call('/v1/droidspeak/state', {asAdmin: true});
    } catch (error) {
      if (error.status !== 401 || !adminKey) throw error;
      return call('/v1/droidspeak/state');
    }
  }

  async function state() {
    const raw = await (await rawState()).json();
    return {
      family: raw.families?.[0] || {name: '', device: '', variants: []},
      caches: raw.caches || {},
      queue: raw.queue || {running: 0, waiting: 0},
      kv: raw.kv || {blocks_used: 0, blocks_total: 0},
      health: raw.draining ? 'draining' : raw.healthy === false ? 'unhealthy' : 'healthy',
    };
  }

  return {chat, countTokens, measureFullPrefill, newSalt, loadAdapter, unloadAdapter, metrics, planBooks, state, messages,
          setKey, setAdminKey, key: () => key, adminKey: () => adminKey};
})();
