/**
 * A lane for each connection, by broker: when it was busy, below the chart and
 * with its times. A part of a lane leads to its exchanges.
 */

import { button, element } from "./dom.js";
import { connectionFilter } from "./terms.js";
import { clock } from "./words.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./source.js").Lane} Lane */
/** @typedef {{first: number, width: number, slot_ms: number}} Span in slots */

/**
 * @param {Store} store
 * @param {import("./source.js").Lanes} data
 * @returns {Node[]}
 */
export function lanes(store, { done, lanes: found, slot_ms, more }) {
  const none = `no connection${store.chosen.filter ? ` matches ${store.chosen.filter}` : "s"}`;
  if (!found.length) return [element("p", {}, done ? none : "reading …")];
  const slots = found.flatMap(({ counts }) => Object.keys(counts).map(Number));
  const first = slots.reduce((one, other) => Math.min(one, other), Infinity);
  const last = slots.reduce((one, other) => Math.max(one, other), -Infinity);
  const span = { first, width: last - first + 1, slot_ms };
  /** @type {Node[]} */
  const made = [axis(span)];
  let broker;
  for (const lane of found) {
    if (lane.node_id !== broker || made.length === 1) made.push(element("h3", {}, title(lane)));
    broker = lane.node_id;
    made.push(line(store, lane, span));
  }
  if (more) made.push(element("p", {}, `the first ${found.length} connections: filter for others`));
  return made;
}

/** @param {Lane} lane */
const title = (lane) => (lane.node_id === null ? "bootstrap addresses" : `broker ${lane.node_id}`);

/**
 * The times, for where something stands beside the lanes, so that the chart is wider than they are.
 * @param {Span} span
 */
function axis({ first, width, slot_ms }) {
  const times = [first, first + width].map((slot) => clock(slot * slot_ms * 1000));
  return element("div", { class: "ends" }, ...times.map((text) => element("span", {}, text)));
}

/**
 * @param {Store} store
 * @param {Lane} lane
 * @param {Span} span
 */
function line(store, lane, span) {
  const filter = connectionFilter(lane.connection);
  const parts = Object.entries(lane.counts).map(([slot, count]) => part(Number(slot), count));
  /**
   * @param {number} slot
   * @param {number} count
   */
  function part(slot, count) {
    const begin = new Date(slot * span.slot_ms).toISOString();
    const end = new Date((slot + 1) * span.slot_ms).toISOString();
    const made = element("i", {
      title: `${count} from ${begin.slice(11, 23)} on`,
      onclick: () => store.narrow(`${filter} time:${begin}..${end}`),
    });
    made.style.left = `${(100 * (slot - span.first)) / span.width}%`;
    made.style.width = `max(2px, ${100 / span.width}%)`;
    made.style.opacity = String(Math.min(1, 0.35 + Math.log10(count) / 3));
    return made;
  }
  const name = `c${lane.connection} ${lane.client_id ?? ""}`;
  const tell = () => store.tell(`connection:${lane.connection}`);
  const count = Object.values(lane.counts).reduce((sum, each) => sum + each, 0);
  const label = `${count} exchanges over time`;
  return element(
    "div",
    { class: "lane" },
    button(name, () => store.narrow(filter)),
    element("span", { class: "why" }, store.has.stories ? button("why", tell) : ""),
    element("span", { class: "bar", role: "img", "aria-label": label }, ...parts),
  );
}
