/**
 * The list of exchanges: only the rows that can be seen are elements, however many there are.
 *
 * Browsers limit the height of an element; so a list of millions is scrolled in proportion. The
 * list of a live page follows its end until somebody scrolls away from there.
 */

import { element } from "./dom.js";
import { bar } from "./waterfall.js";
import { clock, said, shortName } from "./words.js";

const ROW_PX = 22;
const HEIGHT_PX_MAX = 8_000_000;
/** The columns, and what they are for the pointer. */
const COLUMNS = {
  time: ["time", "when the request arrived, UTC"],
  name: ["#", "the number of the exchange"],
  connection: ["conn.", "the connection, and the broker that it leads to"],
  client: ["client", "the client id"],
  took: ["broker", "milliseconds that the broker took, without time in a queue;"
    + " ~ with a wait that the request asked for"],
  added: ["kproxy", "milliseconds that kproxy added"],
  api: ["API", "the API and its version"],
  bar: ["time spent", "kproxy, queue, wait, broker, fault"],
  words: ["request → response", ""],
};

/** @typedef {import("./source.js").Row} Row */

/**
 * @typedef {object} List
 * @property {(by: number) => void} move move the cursor by some rows
 * @property {() => void} toBegin
 * @property {() => void} toEnd
 */

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 * @returns {List}
 */
export function showList(store, place) {
  const head = header();
  const rows = element("div", { class: "rows", role: "rowgroup" });
  const spacer = element("div", { class: "spacer", role: "presentation" }, rows);
  const none = element("p", { class: "none", hidden: true });
  const mark = element("button", { type: "button", class: "new", hidden: true }, "↓ new");
  place.setAttribute("tabindex", "0");
  place.setAttribute("role", "grid");
  place.append(head, spacer, none, mark);
  /** True: it stays at the end; null until somebody has scrolled: then a live list does. */
  let following = /** @type {boolean | null} */ (null);
  /** The number of exchanges when the end was last shown. */
  let known = 0;
  /** The last scroll of our own: a scroll to elsewhere is a person's. */
  let scrolledTo = 0;
  /** True while the cursor can be seen: then it still can when the list gets smaller. */
  let cursorSeen = false;
  let planned = false;

  const plan = () => {
    if (!planned) requestAnimationFrame(draw);
    planned = true;
  };
  const way = () => place.scrollHeight - place.clientHeight;
  /** The number of rows that can be seen at once; with a fraction, as all places below. */
  const shown = () => (place.clientHeight - head.offsetHeight) / ROW_PX;
  const last = () => Math.max(0, store.count - shown());
  const first = () => (way() <= 0 ? 0 : (place.scrollTop / way()) * last());
  /** @param {number} to */
  const scroll = (to) => {
    place.scrollTop = last() ? (Math.min(to, last()) / last()) * way() : 0;
    scrolledTo = place.scrollTop;
  };
  const grow = () => {
    spacer.style.height = `${Math.min(store.count * ROW_PX, HEIGHT_PX_MAX)}px`;
  };
  const follows = () => following ?? (store.live !== null && store.cursor < 0);
  const draw = () => {
    planned = false;
    if (rows.matches(":active")) return plan(); // a row that is pressed must not be replaced
    if (place.hidden) return;
    head.classList.toggle("empty", store.count === 0);
    grow();
    if (follows()) place.scrollTop = way();
    scrolledTo = place.scrollTop;
    if (follows() || !store.grew) known = store.count;
    mark.hidden = store.count <= known;
    const begin = Math.floor(first());
    const length = Math.max(0, Math.min(Math.ceil(shown()) + 1, store.count - begin));
    const places = Array.from({ length }, (_, n) => begin + n);
    const found = places.map((each) => store.row(each));
    const span = spanOf(found);
    rows.style.transform = `translateY(${place.scrollTop - (first() - begin) * ROW_PX}px)`;
    rows.replaceChildren(...places.map((each, n) => line(store, each, found[n], span)));
    none.textContent = nothing(store);
    none.hidden = none.textContent === "";
    place.setAttribute("aria-rowcount", String(store.count));
    const cursor = rows.querySelector("[aria-selected=true]");
    cursorSeen = cursor !== null;
    if (cursor) place.setAttribute("aria-activedescendant", cursor.id);
    else place.removeAttribute("aria-activedescendant");
  };
  const showCursor = () => {
    const { cursor } = store;
    if (cursor < 0) return plan();
    grow();
    const [begin, end] = [first(), first() + shown()];
    if (cursor < begin - shown() || cursor > end + shown()) scroll(cursor - shown() / 2);
    else if (cursor < begin) scroll(cursor);
    else if (cursor + 1 > end) scroll(cursor + 1 - shown());
    following = false;
    plan();
  };
  const isAtEnd = () => place.scrollTop >= way() - ROW_PX / 2;
  const scrolled = () => {
    if (!isAtEnd()) following = Math.abs(place.scrollTop - scrolledTo) < 1 ? following : false;
    else if (place.scrollTop > scrolledTo) following = true; // not where a smaller list ends
    plan();
  };
  const toEnd = () => {
    store.move(store.count - 1);
    following = true;
    plan();
  };
  mark.addEventListener("click", () => {
    following = true;
    plan();
  });
  place.addEventListener("scroll", scrolled, { passive: true });
  place.addEventListener("click", (event) => {
    const at = event.target instanceof Element ? event.target.closest("[data-place]") : null;
    const chosen = Number(at?.getAttribute("data-place") ?? -1);
    const row = store.row(chosen);
    if (row) store.open(row.name, chosen);
  });
  new ResizeObserver(() => (cursorSeen && !follows() ? showCursor() : plan())).observe(place);
  store.addEventListener("restart", () => {
    following = null;
    known = 0;
    place.scrollTop = scrolledTo = 0;
    plan();
  });
  store.addEventListener("cursor", showCursor);
  store.addEventListener("view", () => (place.hidden = store.chosen.view !== ""));
  for (const what of ["list", "view", "live", "exchange"]) store.addEventListener(what, plan);
  const begin = () => {
    const { cursor, count } = store;
    return cursor < 0 && follows() ? count : cursor;
  };
  return { move: (by) => store.move(begin() + by), toBegin: () => store.move(0), toEnd };
}

function header() {
  const cells = Object.entries(COLUMNS).map(([kind, [text, title]]) =>
    element("span", { class: kind, role: "columnheader", title }, text),
  );
  return element("div", { class: "head", role: "row" }, ...cells);
}

/**
 * Why there are no rows; "" while there are some, or there may be.
 * @param {import("./store.js").Store} store
 */
function nothing(store) {
  const { count, done, live, chosen, errors } = store;
  if (count || errors.list) return "";
  if (live) return chosen.filter ? `No exchange matches ${chosen.filter} yet.` : "No exchange yet.";
  if (!done) return "";
  return chosen.filter ? `No exchange matches ${chosen.filter}` : "There are no exchanges.";
}

/**
 * The time that some rows cover.
 * @param {(Row | undefined)[]} found
 */
function spanOf(found) {
  let begin = Infinity;
  let end = -Infinity;
  for (const row of found) {
    if (!row || row.lost) continue;
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
 */
function line(store, place, row, span) {
  const chosen = { "aria-selected": String(place === store.cursor), "aria-rowindex": place + 1 };
  const id = `row-${place}`;
  if (!row) return element("div", { class: "row", role: "row", id, ...chosen }, "…");
  if (row.lost)
    return element("div", { class: "row quiet", role: "row", id, ...chosen },
      `${row.name} was in a file that was removed`);
  const kinds = ["row"];
  if (row.failed) kinds.push("failed");
  if (row.quiet) kinds.push("quiet");
  if (row.faults.length) kinds.push("faulted");
  if (row.unanswered) kinds.push("unanswered");
  const broker = row.node_id === null ? "" : `→n${row.node_id}`;
  const version = row.api_version === null ? "" : ` v${row.api_version}`;
  const [style, took] = row.took;
  const cells = [
    cell("time", clock(row.time_us)),
    cell("name", shortName(row.name), row.name),
    cell("connection", `c${row.connection}${broker}`),
    cell("client", row.client_id ?? ""),
    cell(`took ${style}`, took),
    cell("added", row.added),
    cell("api", `${row.api ?? "half a header"}${version}`),
    bar(row, span),
    words(row),
  ];
  const properties = { class: kinds.join(" "), role: "row", id, "data-place": place, ...chosen };
  return element("div", properties, ...cells);
}

/**
 * @param {string} kind
 * @param {string} text
 * @param {string} title what the pointer is told
 */
const cell = (kind, text, title = text) =>
  element("span", { class: kind, role: "gridcell", title }, text);

/** @param {Row} row */
const words = (row) => element("span", { class: "words", role: "gridcell" }, ...said(row));
