/**
 * The exchanges that are in the file itself: the functions of `source.js`, for a page that has no
 * kproxy to ask. `kproxy export --to x.html` puts it in the place of that module.
 *
 *     #content, #portion-0, … ─ base64, inflate ─▶ JSON ─▶ source ─▶ store ─▶ views
 *
 * A filter is a search: each word must be in the text of a row. What the page's own links put into
 * it is exact: `api:`, `client_id:`, `connection:`, `number:`, `topic:` and `time:`.
 */

import { Refused } from "./refused.js";
import { connectionOf } from "./terms.js";

/** @typedef {typeof import("./source.js")} Source */
/** @typedef {import("./source.js").Row & {topics: string[]}} Row */
/** @typedef {Omit<import("./source.js").Whole, "row">} Rest of an exchange: all but its row */

/**
 * @typedef {object} Content
 * @property {Row[]} rows
 * @property {number[]} portions the place of the first exchange of each portion
 * @property {{[by: string]: import("./source.js").Tally[]}} tables
 * @property {string[]} notices
 * @property {import("./source.js").Finding[] | null} findings null where a filter left some out
 */

/** @type {string} */
export const ADDRESS_MARK = "#";
export const FILTER_HINT = "search the text of these rows   (press / )";
export const HAS = { stories: false, records: false, operators: false };

const NOTHING_FOUND = "Filters of kproxy need kproxy web, or kproxy show.";
const SLOTS_MAX = 400;
const SLOT_MS_MIN = 10;
const LANES_MAX = 500;

/** @type {Promise<Content> | null} */
let content = null;
/** @type {{filter: string, rows: Promise<Row[]>} | null} the last search */
let search = null;

/**
 * @param {string} id
 * @returns {Promise<any>}
 */
async function unpacked(id) {
  if (!("DecompressionStream" in globalThis))
    throw new Refused("this file needs a browser of 2023 or later", 0, null);
  try {
    const packed = atob(document.getElementById(id)?.textContent ?? "");
    const bytes = Uint8Array.from(packed, (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return await new Response(stream).json();
  } catch {
    throw new Refused("this file is damaged: something is missing in it", 0, null);
  }
}

/** @returns {Promise<Content>} */
const all = () => (content ??= unpacked("content"));

/**
 * The rows that a search leaves.
 * @param {string} filter
 * @returns {Promise<Row[]>}
 */
function found(filter) {
  if (search?.filter !== filter) {
    const tests = wordsOf(filter).map(testOf);
    const rows = all().then((content) =>
      content.rows.filter((row) => tests.every((test) => test(row))),
    );
    search = { filter, rows };
  }
  return search.rows;
}

/**
 * The words of a search. Quotes keep what is between them together.
 * @param {string} filter
 */
const wordsOf = (filter) => filter.match(/(?:"(?:\\.|[^"\\])*"|\S)+/g) ?? [];

/**
 * @param {string} word
 * @returns {(row: Row) => boolean}
 */
function testOf(word) {
  const [, key, quoted] = /^(api|client_id|connection|number|topic|time):(.*)$/s.exec(word) ?? [];
  const value = unquoted(quoted ?? word);
  switch (key) {
    case "api": return (row) => row.api === value;
    case "client_id": return (row) => row.client_id === value;
    case "connection": return (row) => String(row.connection) === value;
    case "number": {
      const name = value.includes("#") ? value : `#${value}`;
      const recording = name.endsWith("#1..") ? name.slice(0, -3) : null; // all of `shop#1..`
      return (row) => (recording ? row.name.startsWith(recording) : row.name === name);
    }
    case "topic": return (row) => row.topics.includes(value);
    case "time": {
      const [begin, end] = value.split("..").map((time) => Date.parse(time) * 1000);
      return (row) => row.time_us >= begin && row.time_us < end;
    }
  }
  const text = value.toLowerCase();
  return (row) => textOf(row).includes(text);
}

/** @param {string} text */
const unquoted = (text) =>
  /^".*"$/s.test(text) ? text.slice(1, -1).replace(/\\(.)/gs, "$1") : text;

/** @param {Row} row */
function textOf(row) {
  const time = new Date(Math.floor(row.time_us / 1000)).toISOString();
  const broker = row.node_id === null ? "" : `→n${row.node_id}`;
  const api = `${row.api ?? "half a header"} v${row.api_version}`;
  const words = row.request + row.response.map(([, text]) => text).join("");
  const connection = `c${row.connection}${broker}`;
  const cells = [time, row.name, connection, row.client_id, api, words, ...row.faults];
  return cells.join(" ").toLowerCase();
}

/** @type {Source["rows"]} */
export async function rows(filter, begin, end) {
  const [{ notices }, some] = await Promise.all([all(), found(filter)]);
  const count = some.length;
  const error = count || !filter ? null : NOTHING_FOUND;
  const part = some.slice(begin, end);
  return { rows: part, count, done: true, grows: false, place: null, notices, error };
}

/** @type {Source["more"]} */
export async function more(filter, known, name) {
  const at = (await found(filter)).findIndex((row) => row.name === name);
  return { ...(await rows(filter, known, known)), place: at < 0 ? null : at };
}

/** @type {Source["live"]} */
export const live = async () => ({ live: false, findings: Boolean((await all()).findings) });

/** @type {Source["findings"]} */
export async function findings() {
  const { findings, rows } = await all();
  return { done: true, findings: findings ?? [], exchanges: rows.length };
}

const noProxy = async () => {
  throw new Refused("no kproxy runs here", 404, null);
};

/** @type {Source["faults"]} */
export const faults = noProxy;
/** @type {Source["addFault"]} */
export const addFault = noProxy;
/** @type {Source["enableFault"]} */
export const enableFault = noProxy;
/** @type {Source["removeFault"]} */
export const removeFault = noProxy;

/**
 * Counts of rows over time: by slot, then by what `of` says.
 * @param {Row[]} rows
 * @param {(row: Row) => string} of
 */
function slotted(rows, of) {
  const times = rows.map(({ time_us }) => time_us / 1000);
  const first = times.reduce((one, other) => Math.min(one, other), Infinity);
  const last = times.reduce((one, other) => Math.max(one, other), -Infinity);
  let slot_ms = SLOT_MS_MIN;
  while ((last - first) / slot_ms > SLOTS_MAX) slot_ms *= 2;
  /** @type {{[slot: string]: {[key: string]: number}}} */
  const counts = {};
  rows.forEach((row, place) => {
    const slot = (counts[Math.floor(times[place] / slot_ms)] ??= Object.create(null));
    slot[of(row)] = (slot[of(row)] ?? 0) + 1;
  });
  return { slot_ms, counts };
}

/** @type {Source["overview"]} */
export const overview = async (filter) => slotted(await found(filter), (row) => row.api ?? "?");

/** @type {Source["lanes"]} */
export async function lanes(filter) {
  const rows = await found(filter);
  const { slot_ms, counts } = slotted(rows, connectionOf);
  /** @type {Map<string, import("./source.js").Lane>} */
  const made = new Map();
  for (const row of rows) {
    const connection = connectionOf(row);
    const { node_id, client_id } = row;
    if (!made.has(connection)) made.set(connection, { connection, node_id, client_id, counts: {} });
  }
  for (const [slot, by] of Object.entries(counts))
    for (const [connection, count] of Object.entries(by)) {
      const lane = made.get(connection);
      if (lane) lane.counts[slot] = count;
    }
  const lanes = [...made.values()].slice(0, LANES_MAX);
  lanes.sort((one, other) => (one.node_id ?? -1) - (other.node_id ?? -1));
  return { done: true, slot_ms, lanes, more: made.size > LANES_MAX };
}

/** @type {Source["exchange"]} */
export async function exchange(name) {
  const { rows, portions } = await all();
  const at = rows.findIndex((row) => row.name === name || row.name === `#${name}`);
  if (at < 0) throw new Refused(`exchange ${name} is not in this file`, 404, null);
  const portion = portions.filter((begin) => begin <= at).length - 1;
  /** @type {Rest[]} */
  const rests = await unpacked(`portion-${portion}`);
  return { row: rows[at], ...rests[at - portions[portion]] };
}

/** @type {Source["statistics"]} */
export async function statistics(filter) {
  const note = filter ? "These count all exchanges of this file, not only those found." : "";
  return { done: true, tables: (await all()).tables, note };
}

/** @type {Source["keys"]} */
export const keys = async () => ({ keys: [] });

/** @type {Source["story"]} */
export const story = async () => {
  throw new Refused("stories are not in this file: kproxy web tells them", 404, null);
};

/** @type {Source["records"]} */
export const records = async () => {
  throw new Refused("records are not listed in this file: kproxy web lists them", 404, null);
};
