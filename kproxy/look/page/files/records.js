/**
 * The records of a topic, with who wrote each and who read it.
 */

import { button, element, table } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */

/**
 * @param {Store} store
 * @param {import("./source.js").Records} data
 * @returns {Node[]}
 */
export function records(store, { records: found = [], more, unreadable = [] }) {
  const { topic, filter } = store.chosen;
  const which = filter ? ` in exchanges that match ${filter}` : "";
  const damaged = unreadable.map(([name, text]) =>
    element("p", {}, button(name, () => store.open(name)), ` ${text}`),
  );
  if (!found.length && damaged.length) return damaged;
  if (!found.length) return [element("p", {}, `no records of ${topic}${which}`)];
  const titles = ["", "offset", "time", "key", "value", "written", "read"];
  const limit = `the first ${found.length}: filter by key: or value:`;
  const note = more ? [element("p", {}, limit)] : [];
  const rows = found.map((record) => line(store, record));
  return [...note, ...damaged, table("records", titles, rows)];
}

/**
 * @param {Store} store
 * @param {import("./source.js").Record} record
 */
function line(store, record) {
  const headers = record.headers.map(([name, value]) => `\n${name}: ${value ?? "null"}`);
  const value = cell("value", record.value ?? "tombstone", record.value_by);
  if (headers.length) value.append(element("span", { class: "dim" }, headers.join("")));
  return element(
    "tr",
    { class: record.aborted ? "aborted" : "" },
    element("td", {}, `[${record.partition}]`),
    element("td", {}, record.offset === null ? "–" : `@${record.offset}`),
    element("td", {}, record.time),
    cell("key", record.key ?? "", record.key_by),
    value,
    passes(store, record.produced),
    passes(store, record.consumed),
  );
}

/**
 * A key or a value, and below it by what it is decoded, or why it is not.
 *
 * @param {string} kind
 * @param {string} text
 * @param {string} by
 */
function cell(kind, text, by) {
  const word = by ? [element("span", { class: "dim" }, `\n${by}`)] : [];
  return element("td", { class: kind }, text, ...word);
}

/**
 * @param {Store} store
 * @param {[string, string][]} found
 */
function passes(store, found) {
  const parts = found.flatMap(([name, client]) => [
    button(name, () => store.open(name)),
    ` ${client} `,
  ]);
  return element("td", {}, ...parts);
}
