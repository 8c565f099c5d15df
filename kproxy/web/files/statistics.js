/**
 * What was counted, by API, client and topic: the tables of `kproxy stats`.
 */

import { element } from "./dom.js";
import { button, quoted } from "./exchange.js";

const COLUMNS = ["exchanges", "errors", "unanswered", "p50", "p95", "p99", "max ms", "bytes", "records"];
const TITLES = { api: "by API", client_id: "by client", topic: "by topic" };

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 * @param {HTMLElement} tabs
 */
export function showStatistics(store, place, tabs) {
  const show = () => {
    const { view } = store.chosen;
    const tab = (/** @type {string} */ name, /** @type {string} */ text) => {
      const made = button(text, () => store.view(name), "s");
      made.setAttribute("aria-pressed", String(view === name));
      return made;
    };
    tabs.replaceChildren(tab("", "Exchanges"), tab("statistics", "Statistics"));
    place.hidden = view !== "statistics";
    if (place.hidden) return;
    const tables = Object.entries(store.statistics?.tables ?? {});
    const made = tables.map(([key, tallies]) => table(store, key, tallies));
    place.replaceChildren(...(store.statistics?.done ? made : [element("p", {}, "counting …")]));
  };
  for (const what of ["chosen", "statistics"]) store.addEventListener(what, show);
}

/**
 * @param {import("./store.js").Store} store
 * @param {string} key
 * @param {import("./source.js").Tally[]} tallies
 */
function table(store, key, tallies) {
  const title = TITLES[/** @type {keyof TITLES} */ (key)];
  const head = [title, ...COLUMNS].map((text) => element("th", {}, text));
  const lines = tallies.map((tally) => {
    const search = () => store.filter(`${store.chosen.filter} ${key}:${quoted(tally.name)}`.trim());
    const numbers = [tally.count, tally.errors, tally.unanswered, ...tally.ms.map(time)];
    const cells = [...numbers, time(tally.max_ms), tally.bytes, tally.records];
    return element(
      "tr",
      {},
      element("td", {}, button(tally.name, search)),
      ...cells.map((each) => element("td", {}, shown(each))),
    );
  });
  return element(
    "table",
    { class: "statistics" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...lines),
  );
}

/** @param {number | null} ms */
const time = (ms) => (ms === null ? "–" : ms.toFixed(2));

/** @param {number | string} value */
const shown = (value) => (typeof value === "number" ? value.toLocaleString("en") : value);
