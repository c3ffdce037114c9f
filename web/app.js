// The frame of the page: tabs, theme, API key, and the state that the views show.
'use strict';

const app = (() => {
  const {byId} = dom;
  const kPollMs = 2000;
  const kThemeSlot = 'droidspeak.theme';
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  let view = 'conversation';
  let books = null;  // null: to be asked for
  let timer = 0;
  let isLoading = false;
  let mustLoadAgain = false;

  const isDark = () => document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === 'dark'
      : matchMedia('(prefers-color-scheme: dark)').matches;

  function showTheme() {
    byId('theme').textContent = isDark() ? '\u2600' : '\u263e';
    byId('theme').setAttribute('aria-label', isDark() ? 'Use the light theme' : 'Use the dark theme');
    byId('theme').title = byId('theme').getAttribute('aria-label');
    // Charts have the theme's colours.
    if (view === 'plans') planBooks.draw();
    if (view === 'activity') activity.draw();
  }

  function toggleTheme() {
    document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
    localStorage.setItem(kThemeSlot, document.documentElement.dataset.theme);
    showTheme();
  }

  function showHealth(state, text = state) {
    byId('health').dataset.state = state;
    if (byId('health').textContent !== text) byId('health').textContent = text;  // announced
    byId('api-key').setAttribute('aria-invalid', String(text === 'key needed'));
  }

  // Brings the state into the views. A failure is shown once, not with every poll.
  async function load() {
    mustLoadAgain = isLoading;
    if (isLoading) return;
    isLoading = true;
    try {
      const state = await api.state();
      if (!books) books = await api.planBooks();
      if (byId('health').dataset.state === 'offline') {
        dom.clearError();
        conversation.recount();
      }
      showHealth(state.health);
      conversation.update(state, books);
      playground.update(state, books);
      if (view === 'family') family.update(state);
      if (view === 'activity') await activity.update(state);
      if (view === 'plans') planBooks.update(books);
    } catch (error) {
      books = null;  // another server may come up
      if (byId('health').dataset.state !== 'offline') dom.showError(error);
      showHealth('offline', error.status === 401 ? 'key needed' : 'offline');
    } finally {
      isLoading = false;
    }
    poll();
    if (mustLoadAgain) load();
  }

  function poll() {
    clearTimeout(timer);
    const isLost = byId('health').textContent === 'offline';
    const isLive = isLost || ['family', 'activity'].includes(view);
    if (isLive && !document.hidden) timer = setTimeout(load, kPollMs);
  }

  function show(name) {
    view = name;
    for (const tab of tabs) {
      const isChosen = tab.id === `tab-${name}`;
      tab.setAttribute('aria-selected', String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      byId(tab.getAttribute('aria-controls')).hidden = !isChosen;
    }
    history.replaceState(null, '', `#${name}`);
    if (name === 'plans') books = null;
    load();
  }

  const nameOf = (tab) => tab.id.slice('tab-'.length);

  function moveFocus(event) {
    const at = tabs.indexOf(document.activeElement);
    const targets = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1};
    if (at < 0 || !(event.key in targets)) return;
    event.preventDefault();
    const tab = tabs[(targets[event.key] + tabs.length) % tabs.length];
    tab.focus();
    show(nameOf(tab));
  }

  function restoreTheme() {
    const saved = localStorage.getItem(kThemeSlot);
    if (saved === 'light' || saved === 'dark') document.documentElement.dataset.theme = saved;
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
    byId('theme').addEventListener('click', toggleTheme);
    showTheme();
  }

  conversation.init();
  playground.init();
  adapters.init();
  planBooks.init();
  restoreTheme();
  for (const tab of tabs) tab.addEventListener('click', () => show(nameOf(tab)));
  document.querySelector('[role="tablist"]').addEventListener('keydown', moveFocus);
  document.addEventListener('visibilitychange', poll);
  byId('alert-close').addEventListener('click', dom.clearError);
  byId('api-key').value = api.key();
  byId('api-key').addEventListener('change', () => {
    api.setKey(byId('api-key').value);
    dom.clearError();
    load();
    conversation.recount();
  });
  const wanted = tabs.find((tab) => `#${nameOf(tab)}` === location.hash);
  show(wanted ? nameOf(wanted) : 'conversation');
  conversation.recount();

  return {reload: load};
})();
