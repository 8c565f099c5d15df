/**
 * Counts by API, client and topic: the tables of `kproxy stats`.
 */

import { button, element, table } from "./dom.js";
import { isAsSent, quoted } from "./terms.js";

const TIMES = ["p50", "p95", "p99", "max ms"];
const COLUMNS = ["exchanges", "errors", "unanswered", ...TIMES, "bytes", "records"];
const LEGEND =
  "p50 to max: ms that the broker took, without queues and waits asked for; –: too few have " +
  "such a time. Unanswered are also those whose response did not reach the client.";
const TITLES = { api: "by API", client_id: "by client", topic: "by topic" };

/** Names that stand for none. */
const NAMELESS = new Set(["(no client id)", "(half a header)"]);

/** @typedef {import("./store.js").Store} Store */

/**
 * @param {Store} store
 * @param {import("./source.js").Statistics} data
 * @returns {Node[]}
 */
export function statistics(store, { tables = {}, note }) {
  const found = Object.entries(tables).filter(([, tallies]) => tallies.length);
  const made = found.map(([key, tallies]) => tallied(store, key, tallies));
  if (!made.length) return [element("p", {}, `No exchange matches ${store.chosen.filter}`)];
  const told = note ? [element("p", { class: "facts" }, note)] : [];
  return [...told, ...made, element("p", { class: "facts" }, LEGEND)];
}

/**
 * @param {Store} store
 * @param {string} key
 * @param {import("./source.js").Tally[]} tallies
 */
function tallied(store, key, tallies) {
  const title = TITLES[/** @type {keyof TITLES} */ (key)];
  return table("statistics", [title, ...COLUMNS], tallies.map((tally) => line(store, key, tally)));
}

/**
 * @param {Store} store
 * @param {string} key
 * @param {import("./source.js").Tally} tally
 */
function line(store, key, tally) {
  const { name } = tally;
  const search = () => store.narrow(`${key}:${quoted(name)}`);
  const leads = isAsSent(name) && !NAMELESS.has(name);
  const names = [leads ? button(name, search) : name];
  if (key === "topic" && tally.records && store.has.records)
    names.push(button("records", () => store.view("records", name)));
  const numbers = [tally.count, tally.errors, tally.unanswered, ...tally.ms.map(time)];
  const cells = [...numbers, time(tally.max_ms), tally.bytes, tally.records];
  return element(
    "tr",
    {},
    element("td", {}, ...names),
    ...cells.map((each) => element("td", {}, shown(each))),
  );
}

/** @param {number | null} ms */
const time = (ms) => (ms === null ? "–" : ms.toFixed(2));

/** @param {number | string} value */
const shown = (value) => (typeof value === "number" ? value.toLocaleString("en") : value);
