/**
 * The list of exchanges: only the rows that can be seen are elements, however many there are.
 *
 * Browsers limit the height of an element; so a list of millions is scrolled in proportion.
 */

import { element } from "./dom.js";
import { bar } from "./waterfall.js";

const ROW_PX = 22;
const HEIGHT_PX_MAX = 8_000_000;

/** @typedef {import("./source.js").Row} Row */

/**
 * @typedef {object} List
 * @property {(by: number) => void} move move the choice by some rows
 * @property {(place: number) => void} choose
 * @property {() => void} open open what is chosen
 */

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 * @returns {List}
 */
export function showList(store, place) {
  const rows = element("div", { class: "rows" });
  const spacer = element("div", { class: "spacer" }, rows);
  place.setAttribute("tabindex", "0");
  place.setAttribute("role", "grid");
  const mark = element("button", { type: "button", class: "new", hidden: true }, "↓ new");
  place.append(spacer, mark);
  let chosen = -1;
  /** Whether it follows the end, and how many there were when it last did. */
  let atEnd = false;
  let known = 0;
  let planned = false;

  const plan = () => {
    if (!planned) requestAnimationFrame(draw);
    planned = true;
  };
  const visible = () => Math.ceil(place.clientHeight / ROW_PX) + 1;
  const first = () => {
    const last = Math.max(0, store.count - visible() + 1);
    const way = spacer.clientHeight - place.clientHeight;
    return way <= 0 ? 0 : Math.round((place.scrollTop / way) * last);
  };
  const draw = () => {
    planned = false;
    if (rows.matches(":active")) return plan(); // a row that is pressed must not be replaced
    place.hidden = store.chosen.view !== "";
    if (place.hidden) return;
    spacer.style.height = `${Math.min(store.count * ROW_PX, HEIGHT_PX_MAX)}px`;
    if (!store.count) atEnd = store.live !== null;
    if (atEnd) place.scrollTop = spacer.clientHeight;
    if (atEnd || !store.grows) known = store.count;
    mark.hidden = store.count <= known;
    const begin = first();
    const length = Math.min(visible(), store.count - begin);
    const places = Array.from({ length }, (_, n) => begin + n);
    const found = places.map((each) => store.row(each));
    const span = spanOf(found);
    rows.style.transform = `translateY(${place.scrollTop}px)`;
    const lines = places.map((each, n) => line(store, each, found[n], span, each === chosen));
    rows.replaceChildren(...lines);
    place.setAttribute("aria-rowcount", String(store.count));
  };
  /** @param {number} to */
  const choose = (to) => {
    chosen = Math.max(0, Math.min(store.count - 1, to));
    const begin = first();
    const shown = visible() - 2;
    const last = Math.max(1, store.count - visible() + 1);
    const way = spacer.clientHeight - place.clientHeight;
    if (chosen < begin) place.scrollTop = (chosen / last) * way;
    else if (chosen > begin + shown) place.scrollTop = ((chosen - shown) / last) * way;
    plan();
  };
  const open = () => {
    const row = chosen >= 0 ? store.row(chosen) : undefined;
    if (row) store.open(row.name);
  };
  const scrolled = () => {
    atEnd = place.scrollTop + place.clientHeight >= spacer.clientHeight - ROW_PX / 2;
    plan();
  };
  mark.addEventListener("click", () => {
    atEnd = true;
    plan();
  });
  place.addEventListener("scroll", scrolled, { passive: true });
  place.addEventListener("click", (event) => {
    const at = event.target instanceof Element ? event.target.closest("[data-place]") : null;
    if (!at) return;
    chosen = Number(at.getAttribute("data-place"));
    open();
    plan();
  });
  new ResizeObserver(plan).observe(place);
  for (const what of ["rows", "exchange", "chosen", "live"]) store.addEventListener(what, plan);
  return { move: (by) => choose(chosen + by), choose, open };
}

/**
 * The time that some rows cover.
 * @param {(Row | undefined)[]} found
 */
function spanOf(found) {
  let begin = Infinity;
  let end = -Infinity;
  for (const row of found) {
    if (!row) continue;
    begin = Math.min(begin, row.time_us);
    end = Math.max(end, row.time_us + row.spans.reduce((sum, [, us]) => sum + us, 0));
  }
  return { begin, width: Math.max(1, end - begin) };
}

/**
 * @param {import("./store.js").Store} store
 * @param {number} place
 * @param {Row | undefined} row
 * @param {{begin: number, width: number}} span
 * @param {boolean} chosen
 */
function line(store, place, row, span, chosen) {
  if (!row) return element("div", { class: "row", role: "row" }, element("span", {}, "…"));
  const kinds = ["row"];
  if (row.failed) kinds.push("failed");
  if (row.quiet) kinds.push("quiet");
  if (row.faults.length) kinds.push("faulted");
  if (row.unanswered) kinds.push("unanswered");
  const open = row.name === store.chosen.exchange;
  const broker = row.node_id === null ? "" : `→n${row.node_id}`;
  const version = row.api_version === null ? "" : ` v${row.api_version}`;
  const cells = [
    cell("time", clock(row.time_us)),
    cell("name", row.name),
    cell("connection", `c${row.connection}${broker}`),
    cell("client", row.client_id ?? ""),
    cell("ms", row.broker_ms === null ? "–" : row.broker_ms.toFixed(2)),
    cell("api", `${row.api ?? "half a header"}${version}`),
    bar(row, span),
    words(row),
  ];
  return element(
    "div",
    {
      class: kinds.join(" "), role: "row", "data-place": place, "aria-rowindex": place + 1,
      "aria-selected": String(chosen || open),
    },
    ...cells,
  );
}

/**
 * @param {string} kind
 * @param {string} text
 */
const cell = (kind, text) => element("span", { class: kind, role: "gridcell", title: text }, text);

/** @param {Row} row */
const words = (row) => element("span", { class: "words", role: "gridcell" }, ...said(row));

/**
 * A request and its response in words.
 * @param {Row} row
 */
export function said(row) {
  const styled = row.response.map(([style, text]) =>
    element("span", { class: style || "said" }, text),
  );
  return [row.request, ...(styled.length && row.request ? [" → "] : []), ...styled];
}

/** @param {number} us */
export function clock(us) {
  return new Date(Math.floor(us / 1000)).toISOString().slice(11, 23);
}
