/* Reads and checks settings as the serve program of an image does (images/serve/program/settings.py, rules.py). */
"use strict";
(() => {
  const { python } = ImagePicker;

  /** A start that the image would refuse; `error` is its name. */
  class Refusal extends Error {
    constructor(error, what, { setting = "", value = "", allowed = "", remedy = "" } = {}) {
      super(what);
      Object.assign(this, { error, what, setting, value, allowed, remedy });
    }
  }

  const release = (version) => (/^[0-9]+(\.[0-9]+)*/.exec(version)?.[0] ?? "").split(".").filter(Boolean).map(Number);

  function atLeast(own, bound) {
    const [one, two] = [release(own), release(bound)];
    for (let i = 0; i < Math.max(one.length, two.length); i += 1) {
      const difference = (one[i] ?? 0) - (two[i] ?? 0);
      if (difference) return difference > 0;
    }
    return true;
  }

  /** Return an image of the data with its settings, server and rules. */
  function load(data, entry) {
    const server = data.servers[entry.server];
    const settings = server.settings.map((setting) => ({
      minimum: null, maximum: null, choices: [], since: "", since_of: {}, unset: "", flag: "",
      ...setting,
      server_default: setting[`${entry.server}_default`] ?? "",
      default: entry.defaults[setting.name] ?? setting.default,
    }));
    const version = entry.facts[entry.server];
    return {
      ...entry, settings, version, title: server.title, refused: server.refused,
      common: data.rules.common, rules: data.rules[entry.server], about: server,
      byName: Object.fromEntries(settings.map((setting) => [setting.name, setting])),
      release: entry.version,
      atLeast: (bound) => atLeast(version, bound),
    };
  }

  /** One of two machines: the head, with an address that the user has to put right. */
  const head = (image) => (image.byName.NODES?.default === "2" ? { NODE_RANK: "0", HEAD_ADDRESS: "192.168.100.1" } : {});

  const text = (facts, name) => String(facts.values[name] || "");
  const VERBS = {
    all: (facts, ...parts) => parts.every((part) => holds(part, facts)),
    any: (facts, ...parts) => parts.some((part) => holds(part, facts)),
    not: (facts, part) => !holds(part, facts),
    given: (facts, name) => facts.given.has(name),
    set: (facts, name) => Boolean(facts.values[name]),
    is: (facts, name, ...words) => words.includes(facts.values[name]),
    same: (facts, name, other) => facts.values[name] === facts.values[other],
    less: (facts, name, other) =>
      [name, other].every((fact) => Number.isInteger(facts.values[fact])) && facts.values[name] < facts.values[other],
    starts: (facts, name, ...words) => words.some((word) => text(facts, name).startsWith(word)),
    contains: (facts, name, ...words) => words.some((word) => text(facts, name).toLowerCase().includes(word)),
    "at-least": (facts, version) => facts.atLeast(version),
    before: (facts, version) => !facts.atLeast(version),
  };
  const holds = ([verb, ...rest], facts) => VERBS[verb](facts, ...rest);

  /** Return the rules that hold, with the facts in their texts. */
  function matching(rules, facts) {
    const fill = (words) => words.replace(/\{(\w+)\}/g, (_, name) => python.str(facts.values[name]));
    return rules
      .filter((rule) => holds(rule.when, facts))
      .map(({ when, ...texts }) => Object.fromEntries(Object.entries(texts).map(([name, words]) => [name, fill(words)])));
  }

  /* What may end a line somewhere, or is no character at all. */
  const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\ufeff\ufffe\uffff]/u;
  const short = (number) => (number === null ? "any" : String(number));
  const noun = (setting) => (setting.kind === "whole" ? "a whole number" : "a number");

  /** Describe what a setting accepts. */
  function allowed(image, setting) {
    if (setting.choices.length) return setting.choices.join(", ");
    let words = image.common.allowed[setting.kind] ?? "text";
    if (["whole", "fraction"].includes(setting.kind)) {
      words = `${noun(setting)} from ${short(setting.minimum)} to ${short(setting.maximum)}`;
    }
    return setting.unset ? `${words}, or ${setting.unset}` : words;
  }

  function parse(image, setting, words) {
    const refuse = (problem, remedy, error = "bad-value") => {
      const more = { setting: setting.name, value: words, allowed: allowed(image, setting), remedy };
      throw new Refusal(error, `${setting.name} ${problem}.`, more);
    };
    if (words === "" || words === setting.unset) return null;
    if (setting.kind === "whole" || setting.kind === "fraction") return number(setting, words, refuse);
    if (setting.kind === "switch") {
      const { yes, no } = image.common;
      if (![...yes, ...no].includes(words.toLowerCase())) {
        refuse("is a switch", `Set ${setting.name} to 1 or 0; true, yes, on, false, no and off work too.`);
      }
      return yes.includes(words.toLowerCase());
    }
    if (setting.choices.length) return choice(image, setting, words, refuse);
    if (UNPRINTABLE.test(words)) refuse("contains a line break", "Use a single line.");
    if (setting.kind === "counts") {
      return counts(words) ?? refuse("is not a JSON object of whole numbers", 'Quote it for the shell: \'{"image": 0, "video": 0}\'.');
    }
    return setting.kind === "list" ? python.split(words.replaceAll(",", " ")) : words;
  }

  function number(setting, words, refuse) {
    const remedy = `Set ${setting.name} to a number in that range, or leave it out for ${setting.default || "auto"}.`;
    const value = python[setting.kind](words);
    if (value === null) refuse(`is not ${noun(setting)}`, remedy);
    if (!((setting.minimum ?? -Infinity) <= value && value <= (setting.maximum ?? Infinity))) {
      refuse("is out of range", remedy, "out-of-range");
    }
    return value;
  }

  /** Return a JSON object of whole numbers; null for anything else. JSON.parse does not tell 1.0 from 1. */
  function counts(words) {
    const numbers = words.replace(/"(\\.|[^"\\])*"/g, "").match(/-?[0-9][0-9.eE+-]*/g) ?? [];
    const fits = (word) => /^-?[0-9]+$/.test(word) && BigInt(word) >= 0n && BigInt(word) < 2n ** 63n;
    const isCount = (value) =>
      typeof value === "number" || (value !== null && typeof value === "object" && !Array.isArray(value) && Object.values(value).every(isCount));
    try {
      const value = JSON.parse(words);
      return numbers.every(fits) && typeof value !== "number" && isCount(value) ? value : null;
    } catch {
      return null;
    }
  }

  function choice(image, setting, words, refuse) {
    const value = words.toLowerCase();
    if (!setting.choices.includes(value)) {
      refuse(`does not accept ${python.repr(words)}`, `Use one of them, or leave ${setting.name} out for ${setting.default || "auto"}.`);
    }
    const since = setting.since_of[value];
    if (since && !image.atLeast(since)) {
      const what = `${setting.name}=${words} needs ${image.title} ${since}; this image has ${image.version}.`;
      throw new Refusal("not-in-this-server", what, {
        setting: setting.name,
        value: words,
        allowed: setting.choices.filter((other) => image.atLeast(setting.since_of[other] ?? "0")).join(", "),
        remedy: "Choose another value, or an image with a newer version.",
      });
    }
    return value;
  }

  /** Read and check every setting; throw a Refusal for the first that the image would refuse. */
  function read(image, environment) {
    for (const [name, instead] of Object.entries(image.refused)) {
      const value = python.strip(environment[name] ?? "");
      if (value) {
        const more = { setting: name, value, allowed: "unset", remedy: instead };
        throw new Refusal("not-in-this-server", `${name} is not a setting of ${image.title}.`, more);
      }
    }
    const values = {};
    const given = new Set();
    for (const setting of image.settings) {
      const words = python.strip(environment[setting.name] ?? "");
      if (words && words !== setting.default) given.add(setting.name);
      values[setting.name] = parse(image, setting, words || setting.default);
    }
    checkVersions(image, values, given);
    checkContradictions(image, values, given);
    return { values, given, text: (name) => (values[name] === null || values[name] === undefined ? "" : String(values[name])) };
  }

  function checkVersions(image, values, given) {
    for (const name of [...given].sort()) {
      const setting = image.byName[name];
      if (setting.since && values[name] !== null && !image.atLeast(setting.since)) {
        const what = `${name} needs ${image.title} ${setting.since}; this image has ${image.version}.`;
        const remedy = `Leave ${name} out, or use an image with a newer version.`;
        throw new Refusal("not-in-this-server", what, { setting: name, value: python.str(values[name]), allowed: "unset", remedy });
      }
    }
  }

  function checkContradictions(image, values, given) {
    const facts = { values, given, atLeast: image.atLeast };
    const [rule] = matching([...image.common.contradictions, ...image.rules.contradictions], facts);
    if (!rule) return;
    const value = values[rule.against] ?? null;
    const shown = value === null ? "off" : typeof value === "boolean" ? Number(value) : value;
    const against = `${rule.against}=${shown}`;
    throw new Refusal("contradiction", `${rule.setting} conflicts with ${against}: ${rule.why}.`, {
      setting: rule.setting,
      value: (values[rule.setting] ?? null) === null ? "" : python.str(values[rule.setting]),
      allowed: `a value that works with ${against}`,
      remedy: rule.remedy,
    });
  }

  Object.assign(ImagePicker, { Refusal, load, head, matching, allowed, read });
})();
