/* What Python does with numbers and texts, for words that equal the serve program's. */
"use strict";
globalThis.ImagePicker = (() => {
  const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
  const strip = (text) => text.replace(new RegExp(`^${SPACE}|${SPACE}$`, "g"), "");
  const split = (text) => text.split(new RegExp(SPACE)).filter(Boolean);

  /** Return a whole number; null if the text is none. */
  function whole(text) {
    return /^[+-]?[0-9]{1,4300}$/.test(text) ? Number(text) + 0 : null;
  }

  /** Return a number with decimals; null if the text is none. */
  function fraction(text) {
    if (/^[+-]?(inf|infinity)$/i.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
    if (/^[+-]?nan$/i.test(text)) return NaN;
    return /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?$/i.test(text) ? Number(text) : null;
  }

  const float = (number) => (Number.isInteger(number) ? `${number}.0` : String(number));

  /** Return a number with one decimal; a tie goes to the even digit. */
  function tenths(number) {
    if (Math.abs(number * 4) % 2 !== 1) return number.toFixed(1);
    const below = Math.floor(number * 10);
    return ((below % 2 === 0 ? below : below + 1) / 10).toFixed(1);
  }

  function repr(text) {
    const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
    const named = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", [quote]: `\\${quote}` };
    const inside = Array.from(text, (letter) => {
      if (named[letter]) return named[letter];
      if (letter === " " || !/[\p{C}\p{Z}]/u.test(letter)) return letter;
      return coded(letter).join("");
    });
    return quote + inside.join("") + quote;
  }

  /** Return the mark and the digits of an escaped letter. */
  function coded(letter) {
    const code = letter.codePointAt(0);
    const [mark, width] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
    return [`\\${mark}`, code.toString(16).padStart(width, "0")];
  }

  /** Write JSON as Python does: with spaces, and in ASCII. */
  function json(value) {
    if (Array.isArray(value)) return `[${value.map(json).join(", ")}]`;
    if (value && typeof value === "object") {
      return `{${Object.entries(value).map(([name, part]) => `${json(name)}: ${json(part)}`).join(", ")}}`;
    }
    const escape = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
    return JSON.stringify(value).replace(/[\x7f-\uffff]/g, escape);
  }

  /** Write a scalar of YAML in double quotes and ASCII, as PyYAML does: nothing in it can end a line. */
  function yaml(text) {
    const named = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\xa0": "\\_", "\x85": "\\N", "\u2028": "\\L", "\u2029": "\\P" };
    const inside = Array.from(text, (letter) => {
      if (named[letter] || /[ -~]/.test(letter)) return named[letter] ?? letter;
      const [mark, digits] = coded(letter);
      return mark + digits.toUpperCase();
    });
    return `"${inside.join("")}"`;
  }

  function str(value) {
    if (value === null || value === undefined) return "None";
    return typeof value === "boolean" ? (value ? "True" : "False") : String(value);
  }

  const quoted = (word) =>
    word && !/[^\w@%+=:,./-]/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;

  return { python: { strip, split, whole, fraction, float, tenths, repr, json, yaml, str, quoted } };
})();
