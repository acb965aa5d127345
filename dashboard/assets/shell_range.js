// What a reader may type for a range of time, as an address has it: lengths, times, days, ISO 8601.
(function (app) {
  "use strict";

  const UNITS = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 6048e5 };
  const MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split(" ");
  const LONGEST = 400 * UNITS.d;
  const EXAMPLES = "3h, 2d, 14:00-15:30, yesterday, 20 Nov 14:00 - 16:00, 2026-11-20T14:00Z/6h";

  // The parts of a time, in the reader's zone, to milliseconds and back.
  const at = (utc, ...parts) => (utc ? Date.UTC(...parts) : new Date(...parts).getTime());
  function partsOf(moment, utc) {
    const date = new Date(utc ? moment : moment - new Date(moment).getTimezoneOffset() * UNITS.m);
    return [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  }

  // `3h`, `90 min`, `1h30m`, `2 days`; 0 for anything else.
  const LENGTH = /(\d+(?:\.\d+)?)\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)(?![a-z])\s*/g;
  function lengthOf(text) {
    if (text.replace(LENGTH, "")) return 0;
    return [...text.matchAll(LENGTH)].reduce((sum, [, number, unit]) => sum + Math.round(number * UNITS[unit[0]]), 0);
  }

  // A length as an address has it.
  app.written = function (milliseconds) {
    const length = Math.round(milliseconds / 1e3) * 1e3;
    const unit = ["d", "h", "m"].find((name) => length % UNITS[name] === 0) || "s";
    return `${length / UNITS[unit]}${unit}`;
  };

  // The day a text begins with, and what comes after it: `base` where it names none, null for the 31st of June.
  const ISO = /^(\d{4})-(\d\d?)-(\d\d?)/;
  const DAY_FIRST = /^(\d\d?)\.?\s+([a-z]{3})[a-z]*\.?(?:\s+(\d{4})(?!\d|:))?/;
  const MONTH_FIRST = /^([a-z]{3})[a-z]*\.?\s+(\d\d?)(?:,?\s+(\d{4})(?!\d|:))?/;
  function dayOf(text, base, now, utc) {
    const today = partsOf(now, utc);
    const word = /^(today|yesterday)/.exec(text);
    if (word) return { day: [today[0], today[1], today[2] - (word[1] === "yesterday")], rest: text.slice(word[0].length), named: true };
    const [iso, first, last] = [ISO.exec(text), DAY_FIRST.exec(text), MONTH_FIRST.exec(text)];
    const match = iso || first || last;
    if (!match) return { day: base, rest: text, named: false };
    const [year, name, number] = iso ? iso.slice(1) : first ? [first[3], first[2], first[1]] : [last[3], last[1], last[2]];
    const month = iso ? name - 1 : MONTHS.indexOf(name);
    // A day without its year is the last one there was.
    const day = [year ? +year : today[0] - (at(utc, today[0], month, +number) > now + UNITS.d), month, +number];
    const real = new Date(Date.UTC(...day)).getUTCMonth() === month;
    return real ? { day, rest: text.slice(match[0].length), named: true } : null;
  }

  // One end of a window: when, its day, whether it named that, whether it is all of it.
  function momentOf(text, base, now, utc) {
    if (text === "now") return { at: now, named: true };
    const back = /^now\s*-\s*(.+)$/.exec(text);
    if (back) return lengthOf(back[1]) ? { at: now - lengthOf(back[1]), named: true } : null;
    if (/^\d{12,13}$/.test(text)) return { at: +text, named: true };
    const start = dayOf(text, base, now, utc);
    if (!start) return null;
    const { day, rest, named } = start;
    if (!rest.trim()) return named ? { at: at(utc, ...day), day, named, whole: true } : null;
    const match = /^[t,]?\s*(\d\d?):(\d\d)(?::(\d\d)(?:\.\d+)?)?\s*(z|utc|[+-]\d\d:?\d\d)?$/.exec(rest.trim());
    if (!match || match[1] > 24 || match[2] > 59 || match[3] > 59) return null;
    const time = [...day, +match[1], +match[2], +(match[3] || 0)];
    if (!match[4]) return { at: at(utc, ...time), day, named };
    const [, sign, hours, minutes] = /([+-])(\d\d):?(\d\d)/.exec(match[4]) || ["", "", 0, 0];
    // `14:00-15:30` is a range, `T14:00-05:00` is a time with the offset of its zone.
    if (sign && (rest[0] !== "t" || hours > 14)) return null;
    const offset = (+hours * 60 + +minutes) * (sign === "-" ? -1 : 1);
    return { at: Date.UTC(...time) - offset * UNITS.m, day, named };
  }

  // Where a text may be cut into two ends: at a word or a sign with space around it, nowhere, at a dash.
  function cuts(text) {
    const match = /\s+(?:to|until|-)\s+|\s*(?:\/|\.\.)\s*/.exec(text);
    if (match) return [[text.slice(0, match.index), text.slice(match.index + match[0].length)]];
    const dashes = [...text.matchAll(/-/g)].map(({ index }) => [text.slice(0, index).trim(), text.slice(index + 1).trim()]);
    return [[text, null], ...dashes];
  }

  function endOf(start, text, now, utc) {
    const nextDay = (day) => at(utc, day[0], day[1], day[2] + 1);
    if (text === null) return start.whole ? nextDay(start.day) : now;
    const length = lengthOf(text);
    if (length) return start.at + length;
    const end = momentOf(text, start.day || partsOf(now, utc), now, utc);
    if (!end) return null;
    if (end.whole) return nextDay(end.day);
    // 23:00-01:00 ends on the next day.
    return !end.named && start.day && end.at <= start.at ? end.at + UNITS.d : end.at;
  }

  function between(first, last, now, utc) {
    const today = partsOf(now, utc);
    const from = (day) => {
      const start = momentOf(first, day, now, utc);
      const end = start && endOf(start, last, now, utc);
      return end ? { start, end } : null;
    };
    let range = from(today);
    if (!range) return null;
    // Times alone are the last ones there were.
    const ahead = range.start.at >= now || (range.end > now && range.end >= at(utc, today[0], today[1], today[2] + 1));
    if (!range.start.named && ahead) range = from([today[0], today[1], today[2] - 1]);
    return [range.start.at, range.end];
  }

  // Return `{from, to}` as an address has them, or `{wrong}`: what is wrong and what would be right.
  app.windowOf = function (text, now, utc) {
    const wanted = text.trim().toLowerCase().replace(/[\u2012-\u2015\u2212]/g, "-").replace(/^last\s+/, "");
    const length = lengthOf(wanted.replace(/^now\s*-\s*/, ""));
    if (length > LONGEST) return { wrong: "At most 400 days." };
    if (length) return { from: `now-${app.written(length)}`, to: "" };
    const range = cuts(wanted).map(([first, last]) => between(first, last, now, utc)).find(Boolean);
    if (!range) return { wrong: `Invalid time range. Write ${EXAMPLES}.` };
    const [start, end] = range;
    if (end <= start) return { wrong: "The end is before the start." };
    if (start >= now) return { wrong: "The start is in the future." };
    if (end - start > LONGEST) return { wrong: "At most 400 days." };
    return { from: String(start), to: end >= now ? "" : String(end) };
  };
})(window.stagelens);
