/**
 * Makes elements. Texts become text nodes, never markup: this is the only way in which the page
 * shows what clients and brokers have sent.
 */

/**
 * @param {string} tag
 * @param {Record<string, string | boolean | number | EventListener>} [properties] attributes, and
 *   listeners by the name of their event: `onclick`
 * @param {...(Node | string)} children
 * @returns {HTMLElement}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/**
 * @param {string} text
 * @param {() => void} run
 * @param {string} [title]
 */
export const button = (text, run, title = text) =>
  element("button", { type: "button", title, onclick: run }, text);

/**
 * A table with titles above its columns.
 * @param {string} kind its class
 * @param {string[]} titles
 * @param {HTMLElement[]} lines
 */
export function table(kind, titles, lines) {
  const head = element("tr", {}, ...titles.map((text) => element("th", {}, text)));
  const parts = [element("thead", {}, head), element("tbody", {}, ...lines)];
  return element("table", { class: kind }, ...parts);
}

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Move the keyboard to a place, if it can be seen.
 * @param {string} selector
 * @returns {boolean} whether it can
 */
export function focus(selector) {
  const place = /** @type {HTMLElement | null} */ (document.querySelector(selector));
  place?.focus();
  return place !== null && place === document.activeElement;
}
