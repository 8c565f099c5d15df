/**
 * The views beside the list, one of which is shown: buttons to choose it, and a place for each.
 */

import { element } from "./dom.js";
import { button } from "./exchange.js";
import { faults } from "./faults.js";
import { lanes } from "./lanes.js";
import { records } from "./records.js";
import { statistics } from "./statistics.js";

/** @typedef {import("./store.js").Store} Store */

/** @type {Record<string, (store: Store) => Node[]>} */
const MAKERS = { statistics, lanes, records, faults };
const TABS = { "": "Exchanges", lanes: "Connections", statistics: "Statistics" };

/**
 * @param {Store} store
 * @param {HTMLElement} place
 * @param {HTMLElement} tabs
 */
export function showViews(store, place, tabs) {
  const show = () => {
    const { view, topic } = store.chosen;
    const buttons = Object.entries(TABS).map(([name, text]) => tab(store, name, text));
    if (store.live) buttons.push(tab(store, "faults", "Faults"));
    if (view === "records") buttons.push(tab(store, "records", `Records of ${topic}`));
    tabs.replaceChildren(...buttons);
    const make = MAKERS[view];
    place.hidden = make === undefined;
    if (place.matches(":active")) return; // a button that is pressed must not be replaced
    if (make) place.replaceChildren(...(store.made ? make(store) : [element("p", {}, "…")]));
  };
  for (const what of ["chosen", "made", "live"]) store.addEventListener(what, show);
}

/**
 * @param {Store} store
 * @param {string} name
 * @param {string} text
 */
function tab(store, name, text) {
  const made = button(text, () => store.view(name, name === "records" ? store.chosen.topic : ""));
  made.setAttribute("aria-pressed", String(store.chosen.view === name));
  return made;
}
