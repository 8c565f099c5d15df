/**
 * The views beside the list, one of which is shown: buttons to choose it, and a place for each.
 */

import { button, element } from "./dom.js";
import { faults } from "./faults.js";
import { findings } from "./findings.js";
import { lanes } from "./lanes.js";
import { records } from "./records.js";
import { statistics } from "./statistics.js";

/** @typedef {import("./store.js").Store} Store */

const TABS = {
  findings: "Findings", "": "Exchanges", lanes: "Connections", statistics: "Statistics",
};

/**
 * @param {Store} store
 * @param {HTMLElement} place
 * @param {HTMLElement} tabs
 */
export function showViews(store, place, tabs) {
  const { title } = document;
  const show = () => {
    const { view, topic } = store.chosen;
    const all = store.recorded ? Object.entries(TABS) : [];
    const names = all.filter(([name]) => store.isPossible(name));
    if (store.live) names.push(["faults", "Faults"]);
    if (view === "records") names.push(["records", `Records of ${topic}`]);
    const [, text = ""] = names.find(([name]) => view === name) ?? [];
    const whole = store.title ? `${store.title} · ${title}` : title;
    document.title = view ? `${text} · ${whole}` : whole;
    replace(tabs, names.map(([name, text]) => tab(store, name, text)));
    place.hidden = view === "";
    if (place.matches(":active")) return; // a button that is pressed must not be replaced
    replace(place, store.shown ? made(store, store.shown) : [element("p", {}, waits(store))]);
  };
  for (const what of ["view", "live"]) store.addEventListener(what, show);
}

/** @param {Store} store */
const waits = (store) => (store.errors.view ? "" : "reading …");

/**
 * @param {Store} store
 * @param {import("./store.js").Shown} shown
 */
function made(store, shown) {
  switch (shown.view) {
    case "findings": return findings(store, shown.data);
    case "statistics": return statistics(store, shown.data);
    case "lanes": return lanes(store, shown.data);
    case "records": return records(store, shown.data);
    case "faults": return faults(store, shown.data);
  }
}

/**
 * Replace what is in a place; the keyboard stays where it was.
 * @param {HTMLElement} place
 * @param {Node[]} nodes
 */
function replace(place, nodes) {
  const at = [...place.querySelectorAll("button")].findIndex((each) => each.matches(":focus"));
  place.replaceChildren(...nodes);
  if (at >= 0) place.querySelectorAll("button")[at]?.focus();
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
