/**
 * Filters that are made from others: a term is added without changing what the rest says.
 */

const TOKENS = /[()]|(?:[:,]"(?:\\.|[^"\\])*"|[:,]'(?:\\.|[^'\\])*'|\\.|[^\s()\\])+/gs;

/**
 * A text as a value of a filter, in which nothing is a wildcard.
 * @param {string} text
 */
export const quoted = (text) =>
  /^[\w.-]+$/.test(text) ? text : `"${text.replace(/[\\"*]/g, "\\$&")}"`;

const ESCAPED = /\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt])/;
const NAME_MAX = 249;

/**
 * True if a filter can find what is shown as this text: names in which control characters had to
 * be made visible, or that are cut off, are others in truth.
 * @param {string} text
 */
export const isAsSent = (text) =>
  !ESCAPED.test(text) && !(text.length > NAME_MAX && text.endsWith("…"));

/**
 * The name of an exchange's connection: `3`, and of several recordings `shop#3`.
 * @param {import("./source.js").Row} row
 */
export const connectionOf = ({ name, connection }) =>
  name.slice(0, name.lastIndexOf("#") + 1).replace(/^#$/, "") + connection;

/**
 * The filter of a connection, `3`, or `shop#3` of one of several recordings.
 * @param {string} name
 */
export function connectionFilter(name) {
  const at = name.lastIndexOf("#");
  const filter = `connection:${name.slice(at + 1)}`;
  return at < 0 ? filter : `${filter} number:${quoted(`${name.slice(0, at)}#1..`)}`;
}

/**
 * A filter with one more term. A range of time takes the place of one that was added so before.
 * @param {string} filter
 * @param {string} term one, or several that all must hold
 * @param {boolean} operators whether filters have `or`, `not` and parentheses
 */
export function narrowed(filter, term, operators) {
  const rest = filter.trim();
  const parts = operators ? partsOf(rest) : [];
  if (parts.some(({ text }) => /^or$/i.test(text))) return `(${rest}) ${term}`;
  const plain = parts.filter((_, n) => !/^not$/i.test(parts[n - 1]?.text ?? ""));
  if (plain.some(({ text }) => text === term)) return rest;
  const last = plain[plain.length - 1];
  const replaced = /(?:^|\s)time:/.test(term) && last === parts[parts.length - 1];
  const kept = replaced && last?.text.startsWith("time:") ? rest.slice(0, last.at) : rest;
  return `${kept.trim()} ${term}`.trim();
}

/**
 * The words of a filter that stand in no parentheses.
 * @param {string} filter
 */
function partsOf(filter) {
  let depth = 0;
  const parts = [];
  for (const { 0: text, index: at } of filter.matchAll(TOKENS)) {
    if (text === ")") depth -= 1;
    if (depth === 0) parts.push({ text, at });
    if (text === "(") depth += 1;
  }
  return parts;
}
