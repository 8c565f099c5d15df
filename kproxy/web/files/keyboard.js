/**
 * Everything by the keyboard: `/` the filter, j and k or arrows the list, Enter to open, Esc to
 * close, g and G the ends; e exchanges, c connections, s statistics, f faults.
 */

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLInputElement} filter
 * @param {import("./list.js").List} list
 */
export function listenToKeys(store, filter, list) {
  const page = () => Math.max(1, Math.floor(innerHeight / 30));
  /** @type {Record<string, () => unknown>} */
  const keys = {
    "/": () => filter.focus(),
    j: () => list.move(1), ArrowDown: () => list.move(1),
    k: () => list.move(-1), ArrowUp: () => list.move(-1),
    PageDown: () => list.move(page()), PageUp: () => list.move(-page()),
    g: () => list.choose(0), Home: () => list.choose(0),
    G: () => list.choose(store.count - 1), End: () => list.choose(store.count - 1),
    Enter: () => list.open(),
    Escape: () => store.open(""),
    e: () => store.view(""), c: () => store.view("lanes"), s: () => store.view("statistics"),
    f: () => store.live && store.view("faults"),
  };
  addEventListener("keydown", (event) => {
    const { target } = event;
    const typing = target instanceof Element && target.matches("input, button, select");
    const found = keys[event.key];
    if (typing || !found || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    found();
  });
}
