/**
 * One exchange in full: every field beside its bytes.
 */

import { element } from "./dom.js";
import { clock } from "./list.js";

const HEX_PER_LINE = 8;

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 */
export function showExchange(store, place) {
  const show = () => {
    place.hidden = !store.chosen.name;
    if (!store.whole) {
      place.replaceChildren(...(store.chosen.name ? [element("p", {}, "…")] : []));
      return;
    }
    const { row, halves } = store.whole;
    const close = element("button", { type: "button", title: "Close (Esc)", onclick: () => store.open("") }, "×");
    const facts = [
      `${clock(row.time_us)} UTC`, `connection ${row.connection}`,
      row.node_id === null ? "bootstrap address" : `broker ${row.node_id}`, row.client_id ?? "no client id",
    ];
    const search = [
      link(store, `connection:${row.connection}`),
      ...(row.client_id ? [link(store, `client_id:${quoted(row.client_id)}`)] : []),
      ...(row.api ? [link(store, `api:${row.api}`)] : []),
    ];
    place.replaceChildren(
      element("h2", {}, `${row.name} ${row.api ?? ""}`, close),
      element("p", { class: "facts" }, facts.join(" · ")),
      element("p", { class: "links" }, ...search),
      element("p", { class: "words" }, row.request, row.response.length ? " → " : "",
        ...row.response.map(([style, text]) => element("span", { class: style || "said" }, text))),
      ...spans(row),
      ...halves.flatMap(half),
    );
    place.scrollTop = 0;
  };
  for (const what of ["exchange", "chosen"]) store.addEventListener(what, show);
}

/**
 * @param {import("./store.js").Store} store
 * @param {string} filter
 */
const link = (store, filter) =>
  element("button", { type: "button", onclick: () => store.filter(filter) }, filter);

/** @param {string} text */
const quoted = (text) => (/^[\w.-]+$/.test(text) ? text : `"${text.replace(/[\\"]/g, "\\$&")}"`);

/** @param {import("./source.js").Row} row */
function spans(row) {
  if (!row.spans.length) return [];
  const parts = row.spans.map(([what, us]) => element("span", { class: `span ${what}` }, `${what} ${(us / 1000).toFixed(3)} ms`));
  return [element("p", { class: "spans" }, ...parts)];
}

/** @param {import("./source.js").Half} given */
function half({ title, fields }) {
  const lines = fields.map((field) => {
    const text = element("td", { class: field.style || "field" }, field.text);
    text.style.paddingLeft = `${field.depth * 1.2}em`;
    return element("tr", {}, element("td", { class: "at" }, at(field)), element("td", { class: "hex" }, hex(field)), text);
  });
  return [element("h3", {}, title), element("table", {}, element("tbody", {}, ...lines))];
}

/** @param {import("./source.js").Field} field */
const at = ({ start, end }) => (end > start ? start.toString(16).padStart(4, "0") : "");

/** @param {import("./source.js").Field} field */
function hex({ hex: digits, start, end }) {
  const bytes = digits.match(/../g) ?? [];
  const lines = [];
  for (let n = 0; n < bytes.length; n += HEX_PER_LINE) lines.push(bytes.slice(n, n + HEX_PER_LINE).join(" "));
  const more = end - start - bytes.length;
  return [...lines, ...(more > 0 ? [`… ${more} more`] : [])].join("\n");
}
