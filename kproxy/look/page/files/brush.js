/**
 * Draws a range over a chart: with the pointer, or with the arrow keys.
 */

/** Parts of the chart by which the arrow keys move. */
const STEPS = 50;
/** The least share of the width that the pointer draws: less was a click. */
const SHARE_MIN = 0.004;
/** @type {Record<string, number>} */
const ARROWS = { ArrowLeft: -1, ArrowRight: 1 };

/** @typedef {[number, number]} Steps the first and the last of a range */

/**
 * @param {HTMLElement} chart
 * @param {HTMLElement} range what is laid over it
 * @param {HTMLElement} times where the times of the range are shown
 * @param {(share: number) => string} clockAt the time at a share of the width
 * @param {(low: number, high: number) => void} choose takes the shares of a range
 */
export function brush(chart, range, times, clockAt, choose) {
  let from = -1;
  /** @type {Steps | null} what the keys draw */
  let steps = null;

  /** @param {PointerEvent} event */
  const share = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  /**
   * @param {number} low
   * @param {number} high
   */
  const mark = (low, high) => {
    range.hidden = false;
    range.style.left = `${100 * low}%`;
    range.style.width = `${100 * (high - low)}%`;
    times.textContent = `${clockAt(low)} – ${clockAt(high)}`;
  };
  const stop = () => {
    from = -1;
    steps = null;
    range.hidden = true;
    times.textContent = "";
  };
  chart.addEventListener("pointerdown", (event) => {
    stop();
    from = share(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    const to = share(event);
    chart.title = `${clockAt(to)}: draw a range to filter by it`;
    if (from >= 0) mark(Math.min(from, to), Math.max(from, to));
  });
  chart.addEventListener("pointercancel", stop);
  chart.addEventListener("pointerup", (event) => {
    const to = share(event);
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    stop();
    if (low >= 0 && high - low >= SHARE_MIN) choose(low, high);
  });
  chart.addEventListener("keydown", (event) => {
    const by = ARROWS[event.key];
    if (by) {
      steps = moved(steps, by, event.shiftKey);
      mark(steps[0] / STEPS, (steps[1] + 1) / STEPS);
    } else if (event.key === "Enter" && steps) {
      const [low, high] = steps;
      stop();
      choose(low / STEPS, (high + 1) / STEPS);
    } else if (event.key === "Escape" && steps) stop();
    else return;
    event.preventDefault();
  });
  chart.addEventListener("blur", stop);
}

/**
 * A range that is one step further, or ends one step further. The first one is at an end of the
 * chart.
 * @param {Steps | null} steps
 * @param {number} by
 * @param {boolean} widens
 * @returns {Steps}
 */
function moved(steps, by, widens) {
  if (!steps) return by > 0 ? [0, 0] : [STEPS - 1, STEPS - 1];
  const [low, high] = steps;
  if (widens) return [low, Math.max(low, Math.min(STEPS - 1, high + by))];
  return low + by >= 0 && high + by < STEPS ? [low + by, high + by] : steps;
}
