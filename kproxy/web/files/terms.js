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

/**
 * Whether a filter can find what is shown as this text: names in which control characters had to
 * be made visible are others in truth.
 * @param {string} text
 */
export const isAsSent = (text) => !/\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt])/.test(text);

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
  const tokens = [...filter.trim().matchAll(TOKENS)];
  let depth = 0;
  let either = false;
  for (const [token] of tokens) {
    if (token === "(") depth += 1;
    else if (token === ")") depth -= 1;
    else if (depth === 0 && operators) either ||= token === "or" || token === "OR";
  }
  let rest = filter.trim();
  const last = tokens[tokens.length - 1];
  const before = tokens[tokens.length - 2]?.[0] ?? "";
  const replaces = /(?:^|\s)time:/.test(term) && last?.[0].startsWith("time:") && !either;
  if (replaces && depth === 0 && !/^(?:not|and)$/i.test(before)) rest = rest.slice(0, last.index);
  else if (!either && tokens.some(([token]) => token === term)) return rest;
  if (either) rest = `(${rest})`;
  return `${rest.trim()} ${term}`.trim();
}
