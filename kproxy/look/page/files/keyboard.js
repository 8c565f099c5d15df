/**
 * Everything by the keyboard, and what each key does, on `?`.
 */

import { element, focus } from "./dom.js";

const HELP = [
  ["/", "type a filter; Enter applies it and leaves, Esc leaves"],
  ["j k ↑ ↓", "the next exchange, the one before"],
  ["g G", "the first exchange; the last, and follow the end"],
  ["Enter Esc", "open an exchange; close what was opened last"],
  ["→ ←", "to what is beside the list, to scroll it; back"],
  ["t", "the chart: ← → choose a time, with Shift a longer one; Enter filters by it"],
  ["w", "findings: what kproxy why says"],
  ["e c s f", "exchanges, connections, statistics, faults"],
  ["?", "this list"],
];

/** Keys that scroll what has the focus, where that is not the list. */
const SCROLL = new Set(["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"]);
const SIDEWAYS = new Set(["ArrowLeft", "ArrowRight"]);

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLInputElement} filter
 * @param {import("./list.js").List} list
 * @param {HTMLElement} help
 */
export function listenToKeys(store, filter, list, help) {
  const lines = HELP.map(([key, text]) =>
    element("tr", {}, element("th", {}, key), element("td", {}, text)),
  );
  help.replaceChildren(element("table", {}, element("tbody", {}, ...lines)));
  const page = () => Math.max(1, Math.floor(innerHeight / 30));
  const close = () => {
    if (!help.hidden) help.hidden = true;
    else if (store.chosen.story) store.tell("");
    else if (store.chosen.exchange) store.open("");
  };
  /** @type {Record<string, () => unknown>} */
  const keys = {
    "/": () => filter.focus(),
    t: () => focus("#overview canvas"),
    ArrowRight: () => focus("#beside") || focus("#view"),
    ArrowLeft: () => focus("#list") || focus("#view"),
    j: () => list.move(1), ArrowDown: () => list.move(1),
    k: () => list.move(-1), ArrowUp: () => list.move(-1),
    PageDown: () => list.move(page()), PageUp: () => list.move(-page()),
    g: list.toBegin, Home: list.toBegin,
    G: list.toEnd, End: list.toEnd,
    Enter: () => store.openCursor(),
    Escape: close,
    w: () => store.view("findings"), e: () => store.view(""), c: () => store.view("lanes"), s: () => store.view("statistics"),
    f: () => store.view("faults"),
    "?": () => (help.hidden = !help.hidden),
  };
  addEventListener("keydown", (event) => {
    const at = event.target instanceof Element ? event.target : document.body;
    const run = Object.hasOwn(keys, event.key) && keys[event.key];
    if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
    if (at.matches("input, select") || (event.key === "Enter" && at.matches("button"))) return;
    if (event.defaultPrevented) return;
    if (SCROLL.has(event.key) && (at.closest("#beside, #view") || focus("#view"))) return;
    const before = document.activeElement;
    run();
    if (SIDEWAYS.has(event.key) && document.activeElement === before) return; // it scrolls
    event.preventDefault();
  });
}
