/**
 * Asks kproxy: every request of the page is made here.
 *
 *     kproxy ─ JSON ─▶ source ─▶ store ─▶ views
 */

/**
 * What kproxy says is wrong.
 */
export class Refused extends Error {
  /**
   * @param {string} what
   * @param {number} status of HTTP; 0 if there was no answer
   * @param {number | null} column where in a filter, from 1
   */
  constructor(what, status, column) {
    super(what);
    this.status = status;
    this.column = column;
  }
}

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
 * @property {number} bytes
 * @property {number | null} broker_ms
 * @property {[string, number][]} spans where the time went, in microseconds
 */

/**
 * @typedef {object} Rows
 * @property {number} begin
 * @property {Row[]} rows
 * @property {number} count of all that were found by now
 * @property {boolean} done
 * @property {string[]} notices
 * @property {string | null} error
 */

/** @typedef {{depth: number, text: string, style: string, start: number, end: number, hex: string}} Field */
/** @typedef {{title: string, fields: Field[]}} Half */
/** @typedef {{row: Row, about: Record<string, unknown>, halves: Half[]}} Whole */
/** @typedef {{slot_ms: number, counts: Record<string, Record<string, number>>}} Overview */
/** @typedef {{key: string, help: string}} Key */

/**
 * @param {string} path
 * @param {Record<string, string | number>} [query]
 * @returns {Promise<any>}
 */
async function ask(path, query = {}) {
  const text = new URLSearchParams(
    Object.entries(query).map(([name, value]) => [name, String(value)]),
  ).toString();
  let answer;
  try {
    answer = await fetch(text ? `${path}?${text}` : path);
  } catch {
    throw new Refused("kproxy does not answer: it has ended, or was started again", 0, null);
  }
  const found = await answer.json();
  if (!answer.ok) throw new Refused(found.error, answer.status, found.key ? Number(found.key) : null);
  return found;
}

/**
 * @param {string} filter
 * @param {number} begin
 * @param {number} end
 * @returns {Promise<Rows>}
 */
export const rows = (filter, begin, end) => ask("/rows", { filter, begin, end });

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
