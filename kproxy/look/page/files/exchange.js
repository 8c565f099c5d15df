/**
 * One exchange in full: every field beside its bytes.
 */

import { button, element } from "./dom.js";
import { experiment } from "./experiment.js";
import { connectionFilter, connectionOf, isAsSent, quoted } from "./terms.js";
import { MEANING } from "./waterfall.js";
import { clock, said } from "./words.js";

const HEX_PER_LINE = 8;

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./source.js").Row} Row */

/**
 * @param {Store} store
 * @param {HTMLElement} place
 */
export function showExchange(store, place) {
  const show = () => {
    place.hidden = !store.chosen.exchange;
    if (!store.whole) {
      const wrong = store.errors.exchange;
      const text = wrong
        ? [wrong.message, button("×", () => store.open(""), "Esc")]
        : ["…"];
      place.replaceChildren(element("p", { class: wrong ? "wrong" : "" }, ...text));
      return;
    }
    const { row, about, halves } = store.whole;
    const facts = [
      `${clock(row.time_us)} UTC`,
      `connection ${row.connection}`,
      row.node_id === null ? "bootstrap address" : `broker ${row.node_id}`,
      row.client_id ?? "no client id",
    ];
    place.replaceChildren(
      element("h2", {}, `${row.name} ${row.api ?? ""}`, button("×", () => store.open(""), "Esc")),
      element("p", { class: "facts" }, facts.join(" · ")),
      element("p", { class: row.failed ? "failed" : "" }, ...said(row)),
      ...spans(row),
      ...links(store, row, about),
      ...(store.live ? experiment(store, row) : []),
      ...halves.flatMap(half),
    );
    place.scrollTop = 0;
  };
  store.addEventListener("exchange", show);
}

/**
 * Links to filters that the exchange matches, and to stories that it is in.
 * @param {Store} store
 * @param {Row} row
 * @param {import("./source.js").About} about
 */
function links(store, row, about) {
  const connection = connectionOf(row);
  const filters = [connectionFilter(connection)];
  const client_id = row.client_id && isAsSent(row.client_id) ? row.client_id : "";
  if (client_id) filters.push(`client_id:${quoted(client_id)}`);
  if (row.api) filters.push(`api:${row.api}`);
  const number = row.name.replace(/^#/, "");
  const stories = [`number:${number}`, `connection:${connection}`];
  if (client_id) stories.push(`client_id:${client_id}`);
  stories.push(...about.groups.map((name) => `group:${name}`));
  stories.push(...about.transactional_ids.map((name) => `transactional_id:${name}`));
  const found = [linked(filters, "", (each) => store.show(each))];
  if (store.has.stories) found.push(linked(stories, "why ", (each) => store.tell(each)));
  if (store.has.records)
    found.push(linked(about.topics, "records of ", (each) => store.view("records", each)));
  return found;
}

/**
 * @param {string[]} texts
 * @param {string} before
 * @param {(text: string) => void} run
 */
const linked = (texts, before, run) =>
  element("p", { class: "links" }, ...texts.map((each) => button(before + each, () => run(each))));

/** @param {Row} row */
function spans(row) {
  const parts = row.spans.map(([what, us]) =>
    element(
      "span", { class: `span ${what}`, title: MEANING[what] ?? "" },
      `${what} ${(us / 1000).toFixed(3)} ms`,
    ),
  );
  return parts.length ? [element("p", { class: "spans" }, ...parts)] : [];
}

/** @param {import("./source.js").Half} given */
function half({ title, fields }) {
  const lines = fields.map((field) => {
    const text = element("td", { class: field.style }, field.text);
    text.style.paddingLeft = `${field.depth * 1.2}em`;
    const bytes = element("td", { class: "hex" }, hex(field));
    return element("tr", {}, element("td", { class: "at" }, at(field)), bytes, text);
  });
  return [element("h3", {}, title), element("table", {}, element("tbody", {}, ...lines))];
}

/** @param {import("./source.js").Field} field */
const at = ({ start, end }) => (end > start ? start.toString(16).padStart(4, "0") : "");

/** @param {import("./source.js").Field} field */
function hex({ hex: digits, start, end }) {
  const bytes = digits.match(/../g) ?? [];
  const lines = [];
  for (let n = 0; n < bytes.length; n += HEX_PER_LINE)
    lines.push(bytes.slice(n, n + HEX_PER_LINE).join(" "));
  const more = end - start - bytes.length;
  return [...lines, ...(more > 0 ? [`… ${more} more`] : [])].join("\n");
}
