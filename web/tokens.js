// Token counts from the server's tokenizer, asked for when typing pauses.
'use strict';

const tokens = (() => {
  const kPauseMs = 250;

  // The returned function says that something has changed. `bodyOf` makes the request, or null where there is nothing
  // to count; `show` gets {count, limit}, {isTooLong} or null where the number is not known (yet).
  function counter(bodyOf, show) {
    let timer = 0;
    let stopper = new AbortController();

    async function ask() {
      const body = bodyOf();
      if (!body) return;
      stopper = new AbortController();
      const {signal} = stopper;
      try {
        const counted = await api.countTokens(body, signal);
        if (!signal.aborted) show(counted);
      } catch (error) {
        if (!signal.aborted) show(error.code === 'context_length_exceeded' ? {isTooLong: true} : null);
      }
    }

    return () => {
      clearTimeout(timer);
      stopper.abort();
      show(null);
      timer = setTimeout(ask, kPauseMs);
    };
  }

  return {counter};
})();
