// Adapters loaded and unloaded at run time, in the family view.
'use strict';

const adapters = (() => {
  const {byId, element} = dom;
  let shown = '';

  async function run(work, done) {
    byId('adapter-load').disabled = true;
    dom.clearError();
    try {
      await work();
      byId('adapter-result').textContent = done;
    } catch (error) {
      byId('adapter-result').textContent = '';
      dom.showError(error);
    } finally {
      byId('adapter-load').disabled = false;
      app.reload();
    }
  }

  function load() {
    const name = byId('adapter-name').value.trim();
    const fields = {lora_name: name, lora_path: byId('adapter-path').value.trim(), load_inplace: byId('adapter-replace').checked};
    return run(() => api.loadAdapter(fields), `${name} was loaded.`);
  }

  // The first press asks, the second does it; leaving the button takes the question back.
  function unloadButton(name) {
    const button = element('button', {type: 'button', class: 'quiet', 'data-unload': name, 'aria-label': `Unload ${name}`}, 'Unload');
    const ask = (isAsked) => {
      button.dataset.asked = isAsked ? 'yes' : '';
      button.textContent = isAsked ? 'Press again to unload' : 'Unload';
      button.setAttribute('aria-label', isAsked ? `Press again to unload ${name}` : `Unload ${name}`);
    };
    button.addEventListener('blur', () => ask(false));
    button.addEventListener('click', () => {
      if (button.dataset.asked !== 'yes') {
        ask(true);
        dom.announce(`Press again to unload ${name}.`);
        return;
      }
      byId('adapter-name').focus();
      run(() => api.unloadAdapter(name), `${name} was unloaded.`);
    });
    return button;
  }

  // Drawn only when something has changed: the keyboard's place in the table stays.
  function showVariants(variants) {
    const now = JSON.stringify(variants);
    if (now === shown) return;
    shown = now;
    byId('variants').tBodies[0].replaceChildren(...variants.map((variant) => {
      const digest = variant.digest || '';
      return element('tr', {}, element('th', {scope: 'row'}, variant.name),
                     element('td', {}, variant.parent || dom.kVoid),
                     element('td', {class: 'number'}, dom.bytes(variant.bytes)),
                     element('td', {}, (variant.takes_from || []).join(', ') || dom.kVoid),
                     element('td', {}, element('code', {title: digest}, digest.slice(0, 12) || dom.kVoid)),
                     element('td', {}, variant.parent ? unloadButton(variant.name) : null));
    }));
  }

  function init() {
    byId('adapter-form').addEventListener('submit', (event) => {
      event.preventDefault();
      load();
    });
    byId('admin-key').value = api.adminKey();
    byId('admin-key').addEventListener('change', () => {
      api.setAdminKey(byId('admin-key').value);
      app.reload();
    });
  }

  return {init, showVariants};
})();
