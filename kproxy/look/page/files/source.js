/**
 * Asks kproxy: every request of the page is made here.
 *
 *     kproxy ─ JSON ─▶ source ─▶ store ─▶ views
 */

import { Refused } from "./refused.js";

/** @type {string} what is in the address before all that a person has chosen */
export const ADDRESS_MARK = "?";
export const FILTER_HINT = "api:Fetch service_ms:10..   (press / )";
/** The parts that kproxy answers. */
export const HAS = { stories: true, records: true, operators: true };

const AGAIN_MS = 400;
const AGAIN_MAX = 20;

/**
 * @typedef {object} Row an exchange in the list
 * @property {string} name
 * @property {number} time_us
 * @property {number} connection
 * @property {number | null} node_id
 * @property {string | null} client_id
 * @property {string | null} api
 * @property {number | null} api_version
 * @property {string} request
 * @property {[string, string][]} response styles and texts
 * @property {boolean} failed
 * @property {boolean} unanswered
 * @property {string[]} faults
 * @property {boolean} quiet
 * @property {[string, string]} took style and text: milliseconds that the broker took
 * @property {string} added milliseconds that kproxy added
 * @property {boolean} [lost] true, and all but the name is missing, if its file was removed
 * @property {[string, number][]} spans where the time went, in microseconds
 */

/**
 * @typedef {object} Rows
 * @property {Row[]} rows
 * @property {number} count of all that were found by now
 * @property {boolean} done
 * @property {boolean} grows whether all was read, and more may come: it is being written, or torn
 * @property {number | null} place of the exchange that was asked for by its name, if it was found
 * @property {number | null} [partial] the share that was read, while there is more
 * @property {string[]} notices
 * @property {string | null} error
 */

/**
 * @typedef {object} Field
 * @property {number} depth
 * @property {string} text
 * @property {string} style
 * @property {number} start
 * @property {number} end
 * @property {string} hex
 */

/** @typedef {{title: string, fields: Field[]}} Half */
/** @typedef {{topics: string[], groups: string[], transactional_ids: string[]}} About */
/** @typedef {{row: Row, about: About, halves: Half[]}} Whole */
/** @typedef {{slot_ms: number, counts: {[slot: string]: {[api: string]: number}}}} Overview */
/** @typedef {{key: string, help: string}} Key */
/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {{done: boolean, sentences?: string[], pictures?: Picture[]}} Story */

/**
 * @typedef {object} Tally what is counted of an API, a client or a topic
 * @property {string} name
 * @property {number} count
 * @property {number} errors
 * @property {number} unanswered
 * @property {(number | null)[]} ms p50, p95 and p99 of the broker's time
 * @property {number | null} max_ms
 * @property {number} bytes
 * @property {number} records
 */

/** @typedef {{seed: number, faults: Fault[]}} Faults */
/**
 * @typedef {object} Live
 * @property {boolean} live whether a proxy, or a replay, runs
 * @property {boolean} [recorded] whether there are exchanges to show
 * @property {boolean} [replayed] whether they are those of a recording that is replayed
 * @property {string} [title] the names of the recordings, if they do not grow
 * @property {boolean} [findings] false if there are none to ask for
 */

/**
 * @typedef {object} Fault a fault rule and its counters
 * @property {number} fault_id
 * @property {string} name
 * @property {boolean} enabled
 * @property {number} matched
 * @property {number} fired
 * @property {{[word: string]: unknown}} rule
 * @property {string[]} warnings
 */

/**
 * @typedef {object} Finding
 * @property {string} harm "data", "latency" or "curiosity"
 * @property {string} heading of all with this harm
 * @property {string} text
 * @property {string[]} evidence
 * @property {string} recording whose exchanges it names, where that is one of several
 * @property {string} filter of its exchanges; "" for none
 * @property {string} story its subject; "" for none
 * @property {string} command that shows it
 */

/**
 * @typedef {object} Findings
 * @property {boolean} done
 * @property {Finding[]} [findings]
 * @property {number} [exchanges] in which they are found
 * @property {number} [behind] exchanges that were not looked at yet
 * @property {string | null} [error]
 */

/** @typedef {{done: boolean, tables?: {[by: string]: Tally[]}, note?: string}} Statistics */

/**
 * @typedef {object} Record a record of a topic, and the exchanges that carried it
 * @property {number} partition
 * @property {number | null} offset
 * @property {string} time
 * @property {string | null} key
 * @property {string} key_by by what it is decoded, or why it is not
 * @property {string | null} value
 * @property {string} value_by
 * @property {[string, string | null][]} headers
 * @property {boolean} aborted
 * @property {[string, string][]} produced names of exchanges, and clients
 * @property {[string, string][]} consumed
 */

/**
 * @typedef {object} Records
 * @property {boolean} done
 * @property {Record[]} [records]
 * @property {boolean} [more]
 * @property {[string, string][]} [unreadable] exchanges, and what of their records cannot be read
 */

/**
 * @typedef {object} Lane a connection
 * @property {string} connection as filters name it
 * @property {number | null} node_id
 * @property {string | null} client_id
 * @property {{[slot: string]: number}} counts
 */

/** @typedef {{done: boolean, slot_ms: number, lanes: Lane[], more: boolean}} Lanes */

/**
 * @param {string} path
 * @param {{[name: string]: string | number}} [query]
 * @returns {Promise<any>}
 */
function ask(path, query = {}) {
  const text = new URLSearchParams(
    Object.entries(query).map(([name, value]) => [name, String(value)]),
  ).toString();
  return answered(text ? `${path}?${text}` : path);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
const change = (method, path, body) =>
  answered(path, {
    method,
    headers: body ? { "Content-Type": "application/json" } : {},
    body: body ? JSON.stringify(body) : null,
  });

/**
 * @param {string} path
 * @param {RequestInit} [request]
 * @returns {Promise<any>}
 */
async function answered(path, request) {
  let { ok, status, found } = await once(path, request);
  for (let n = 0; status === 503 && n < AGAIN_MAX; n += 1) {
    await new Promise((resume) => setTimeout(resume, AGAIN_MS)); // the page's process starts again
    ({ ok, status, found } = await once(path, request));
  }
  const column = Number(found.key) || null;
  const what = found.key && column === null ? `${found.key}: ${found.error}` : found.error;
  if (!ok) throw new Refused(what, status, column);
  return found;
}

/**
 * @param {string} path
 * @param {RequestInit} [request]
 * @returns {Promise<{ok: boolean, status: number, found: any}>}
 */
async function once(path, request) {
  try {
    const answer = await fetch(path, request);
    return { ok: answer.ok, status: answer.status, found: await answer.json() };
  } catch {
    throw new Refused("kproxy does not answer: it has ended, or was started again", 0, null);
  }
}

/**
 * @param {string} filter
 * @param {number} begin
 * @param {number} end
 * @returns {Promise<Rows>}
 */
export const rows = (filter, begin, end) => ask("/rows", { filter, begin, end });

/**
 * Ask for the number of exchanges, as soon as there are others than are known.
 * @param {string} filter
 * @param {number} known
 * @param {string} name of an exchange whose place is wanted; "" for none
 * @returns {Promise<Rows>}
 */
export const more = (filter, known, name) =>
  ask("/rows", { filter, begin: known, end: known, known, ...(name && { name }) });

/** @returns {Promise<Findings>} */
export const findings = () => ask("/findings");

/** @returns {Promise<Live>} */
export const live = () => ask("/live");

/** @returns {Promise<Faults>} */
export const faults = () => ask("/faults");

/**
 * @param {{[word: string]: unknown}} rule in the words of a [[fault]] table
 * @returns {Promise<Fault>}
 */
export const addFault = (rule) => change("POST", "/faults", rule);

/**
 * @param {Fault} fault
 * @param {boolean} enabled
 * @returns {Promise<Fault>}
 */
export const enableFault = (fault, enabled) =>
  change("POST", `/faults/${fault.fault_id}/${enabled ? "enable" : "disable"}`);

/**
 * @param {Fault} fault
 * @returns {Promise<Fault>}
 */
export const removeFault = (fault) => change("DELETE", `/faults/${fault.fault_id}`);

/**
 * @param {string} filter
 * @returns {Promise<Overview>}
 */
export const overview = (filter) => ask("/overview", { filter });

/**
 * @param {string} name
 * @returns {Promise<Whole>}
 */
export const exchange = (name) => ask("/exchange", { name });

/** @returns {Promise<{keys: Key[]}>} */
export const keys = () => ask("/keys");

/**
 * @param {string} of a subject: `connection:3`
 * @returns {Promise<Story>}
 */
export const story = (of) => ask("/story", { of });

/**
 * @param {string} filter
 * @returns {Promise<Statistics>}
 */
export const statistics = (filter) => ask("/statistics", { filter });

/**
 * @param {string} filter
 * @param {string} topic
 * @returns {Promise<Records>}
 */
export const records = (filter, topic) => ask("/records", { filter, topic });

/**
 * @param {string} filter
 * @returns {Promise<Lanes>}
 */
export const lanes = (filter) => ask("/lanes", { filter });
