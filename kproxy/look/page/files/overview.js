/**
 * The number of exchanges over time, by API; a range that is drawn becomes a filter of time.
 */

import { brush } from "./brush.js";
import { element } from "./dom.js";
import { clock } from "./words.js";

/** APIs with a colour of their own; the others have one together. */
const COLOURS = 7;
const OTHERS = "others";

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 */
export function showOverview(store, place) {
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img", tabindex: 0 }));
  const range = element("div", { class: "range", hidden: true });
  const legend = element("p", { class: "legend" });
  const begin = element("span", {});
  const drawn = element("output", {});
  const end = element("span", {});
  const plot = element("div", { class: "plot" }, canvas, range);
  place.append(plot, element("div", { class: "ends" }, begin, drawn, end), legend);
  /** @type {{begin: number, end: number} | null} in milliseconds since 1970 */
  let shown = null;
  /** @type {Map<string, number>} APIs, each with its colour */
  const colours = new Map();

  const draw = () => {
    const slots = slotsOf(store.overview);
    place.hidden = slots.length < 2;
    place.classList.toggle("over-lanes", store.chosen.view === "lanes");
    if (place.hidden || !store.overview) return;
    const slot_ms = store.overview.slot_ms;
    const first = slots[0].slot;
    const count = slots[slots.length - 1].slot - first + 1;
    shown = { begin: first * slot_ms, end: (first + count) * slot_ms };
    const totals = totalsOf(slots);
    giveColours(colours, totals, store.chosen.filter === "");
    const apis = [...totals.keys()].filter((api) => colours.has(api));
    const others = [...totals.keys()].filter((api) => !colours.has(api));
    paint(canvas, slots, first, count, [...apis, ...others].map((api) => [api, colourOf(api)]));
    const names = [...apis, ...(others.length ? [OTHERS] : [])];
    legend.replaceChildren(
      ...names.map((api) => {
        const title = api === OTHERS ? others.join(", ") : `${totals.get(api)}`;
        return element("span", { class: `c${colourOf(api)}`, title }, element("i"), api);
      }),
    );
    begin.textContent = clock(shown.begin * 1000);
    end.textContent = clock(shown.end * 1000);
    canvas.setAttribute(
      "aria-label",
      `exchanges from ${begin.textContent} to ${end.textContent}: ` +
        [...totals].map(([api, total]) => `${api} ${total}`).join(", "),
    );
  };
  const colourOf = (/** @type {string} */ api) => colours.get(api) ?? COLOURS;
  /** @param {number} share */
  const momentAt = (share) =>
    shown ? new Date(shown.begin + share * (shown.end - shown.begin)).toISOString() : "";
  /**
   * @param {number} low
   * @param {number} high
   */
  const narrow = (low, high) =>
    store.narrow(`time:${momentAt(low)}..${momentAt(high)}`, store.chosen.view);
  const clockAt = (/** @type {number} */ share) => momentAt(share).slice(11, 23);
  brush(canvas, range, drawn, clockAt, narrow);
  new ResizeObserver(draw).observe(place);
  for (const what of ["overview", "restart", "view"]) store.addEventListener(what, draw);
}

/**
 * Give APIs colours, those with most exchanges first. Under a filter they keep them; among all
 * exchanges, an API that has become far more frequent takes the colour of the rarest.
 * @param {Map<string, number>} colours
 * @param {Map<string, number>} totals
 * @param {boolean} all
 */
export function giveColours(colours, totals, all) {
  const total = (/** @type {string} */ api) => totals.get(api) ?? 0;
  for (const api of totals.keys()) {
    if (colours.has(api)) continue;
    if (colours.size < COLOURS) colours.set(api, colours.size);
    else if (all) {
      const rarest = [...colours.keys()].reduce((a, b) => (total(b) < total(a) ? b : a));
      if (total(api) <= 2 * total(rarest)) return;
      colours.set(api, colours.get(rarest) ?? 0);
      colours.delete(rarest);
    }
  }
}

/** @typedef {{slot: number, apis: Record<string, number>}} Slot */

/**
 * @param {import("./source.js").Overview | null} overview
 * @returns {Slot[]}
 */
function slotsOf(overview) {
  const counts = Object.entries(overview?.counts ?? {});
  const slots = counts.map(([slot, apis]) => ({ slot: Number(slot), apis }));
  return slots.sort((one, other) => one.slot - other.slot);
}

/**
 * The number of exchanges of each API, the largest first.
 * @param {Slot[]} slots
 */
function totalsOf(slots) {
  /** @type {Map<string, number>} */
  const totals = new Map();
  for (const { apis } of slots)
    for (const [api, count] of Object.entries(apis))
      totals.set(api, (totals.get(api) ?? 0) + count);
  return new Map([...totals].sort((one, other) => other[1] - one[1]));
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Slot[]} slots
 * @param {number} first
 * @param {number} count
 * @param {[string, number][]} apis with their colours
 */
function paint(canvas, slots, first, count, apis) {
  const scale = devicePixelRatio || 1;
  const width = (canvas.width = canvas.clientWidth * scale);
  const height = (canvas.height = canvas.clientHeight * scale);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(canvas);
  const colours = apis.map(([, n]) => style.getPropertyValue(`--c${n}`));
  const sums = slots.map(({ apis }) => Object.values(apis).reduce((a, b) => a + b, 0));
  const highest = Math.max(...sums);
  const wide = Math.max(1, width / count - 0.5);
  for (const { slot, apis: counts } of slots) {
    let top = height;
    apis.forEach(([api], n) => {
      const part = ((counts[api] ?? 0) / highest) * height;
      pen.fillStyle = colours[n];
      pen.fillRect(((slot - first) / count) * width, top - part, wide, part);
      top -= part;
    });
  }
}
