/**
 * A lane for each connection, by broker: when it was busy. A part of a lane leads to its exchanges.
 */

import { element } from "./dom.js";
import { button, connectionFilter } from "./exchange.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./source.js").Lane} Lane */

/**
 * @param {Store} store
 * @returns {Node[]}
 */
export function lanes(store) {
  const { lanes: found = [], slot_ms = 1, more = false } = store.made ?? {};
  const slots = found.flatMap(({ counts }) => Object.keys(counts).map(Number));
  const first = slots.reduce((one, other) => Math.min(one, other), Infinity);
  const last = slots.reduce((one, other) => Math.max(one, other), -Infinity);
  const span = { first, width: last - first + 1, slot_ms };
  /** @type {Node[]} */
  const made = [];
  let broker;
  for (const lane of found) {
    if (lane.node_id !== broker || !made.length) made.push(element("h3", {}, title(lane)));
    broker = lane.node_id;
    made.push(line(store, lane, span));
  }
  if (more) made.push(element("p", {}, `the first ${found.length} connections: filter for others`));
  return made.length ? made : [element("p", {}, store.made?.done ? "no connections" : "…")];
}

/** @param {Lane} lane */
const title = (lane) => (lane.node_id === null ? "bootstrap addresses" : `broker ${lane.node_id}`);

/**
 * @param {Store} store
 * @param {Lane} lane
 * @param {{first: number, width: number, slot_ms: number}} span
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
      onclick: () => store.show(`${filter} time:${begin}..${end}`),
    });
    made.style.left = `${(100 * (slot - span.first)) / span.width}%`;
    made.style.width = `max(2px, ${100 / span.width}%)`;
    made.style.opacity = String(Math.min(1, 0.35 + Math.log10(count) / 3));
    return made;
  }
  const name = `c${lane.connection} ${lane.client_id ?? ""}`;
  const tell = () => store.tell(`connection:${lane.connection}`);
  return element(
    "div",
    { class: "lane" },
    button(name, () => store.show(filter)),
    ...(store.has.stories ? [button("why", tell)] : []),
    element("span", { class: "bar" }, ...parts),
  );
}
