/* Writes a start as a command, a file or a client (imagefactory/launch). */
"use strict";
(() => {
  const { python } = ImagePicker;

  /** Return the settings that differ from the image's defaults, as the user wrote them. */
  function given(image, environment) {
    const words = image.settings.map(({ name, default: assumed }) => [name, python.strip(environment[name] ?? ""), assumed]);
    return Object.fromEntries(words.filter(([, value, assumed]) => value && value !== assumed).map(([name, value]) => [name, value]));
  }

  function dockerRun(image, environment) {
    const more = Object.entries(given(image, environment)).sort(([one], [two]) => (one < two ? -1 : 1));
    const options = [...image.options, ...more.flatMap(([name, value]) => ["--env", `${name}=${value}`])];
    const lines = ["docker run"];
    for (let i = 0; i < options.length; ) {
      const width = i + 1 < options.length && !options[i + 1].startsWith("-") ? 2 : 1;
      // The shell expands the home folder unless it is quoted.
      const words = options.slice(i, i + width).map((word) => (word.startsWith("~/") ? word : python.quoted(word)));
      lines.push(`  ${words.join(" ")}`);
      i += width;
    }
    return [...lines, `  ${python.quoted(image.reference)}`].join(" \\\n");
  }

  function scalar(words) {
    if (words === "null") return words;
    if (/[^ -~]/.test(words)) return python.yaml(words);
    const plain = /^\$\{\w+:-[\w./:@+-]*\}$/.test(words) || /^[A-Za-z_][\w./@+-]*$/.test(words);
    return plain && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(words) ? words : `'${words.replaceAll("'", "''")}'`;
  }

  function compose(image, environment) {
    const defaults = image.settings.filter(({ kind, default: words }) => words && kind !== "secret").map(({ name, default: words }) => [name, words]);
    const values = { ...Object.fromEntries(defaults), ...given(image, environment) };
    const lines = ["VLLM_API_KEY", "VLLM_API_KEY_FILE", "HF_TOKEN"].map((name) => `${name}: null`);
    for (const [name, value] of Object.entries(values)) {
      const plain = !/[{}$]/.test(value);
      lines.push(`${name}: ${scalar(plain ? `\${${name}:-${value}}` : value.replaceAll("$", "$$$$"))}`);
    }
    return image.compose.replace(" SETTINGS\n", () => `\n${lines.map((line) => `      ${line}\n`).join("")}`);
  }

  function recipe(style, image, command) {
    const template = image.recipes[style];
    if (!template) return missing(style, image);
    const defaults = { host: "0.0.0.0", port: "8000", tensor_parallel: "1" };
    const rest = [image.server, "serve", ...command.words];
    const words = [];
    while (rest.length) {
      const word = rest.shift();
      const name = image.about.templated[word];
      if (name) {
        defaults[name] = rest.shift();
        words.push(word, { name });
      } else if (word === "--host" || word === "--port") defaults[word.slice(2)] = rest.shift();
      else words.push(word);
    }
    words.push("--host", { name: "host" }, "--port", { name: "port" }, image.about.tensor_parallel, { name: "tensor_parallel" });
    const shown = Object.entries(defaults).map(([name, value]) => `  ${name}: ${/^[\d.]+$/.test(value) ? value : scalar(value)}\n`);
    const folded = python.yaml(`${fold(words, style === "eugr").join("\n")}\n`);
    return template.replace(" DEFAULTS\n", () => `\n${shown.join("")}`).replace(" COMMAND\n", () => ` ${folded}\n`);
  }

  function fold(words, doubled) {
    const lines = [words.slice(0, 3).join(" ")];
    for (const word of words.slice(3)) {
      if (typeof word !== "string") lines[lines.length - 1] += ` {${word.name}}`;
      else {
        const quoted = doubled ? python.quoted(word).replaceAll("{", "{{").replaceAll("}", "}}") : python.quoted(word);
        if (word.startsWith("-")) lines.push(`  ${quoted}`);
        else lines[lines.length - 1] += ` ${quoted}`;
      }
    }
    return lines.map((line, position) => (position < lines.length - 1 ? `${line} \\` : line));
  }

  function missing(style, image) {
    if (!image.about.recipes.includes(style)) return `# ${style} does not start ${image.title}.\n`;
    return `# A recipe names its image by digest, and ${image.target} has none yet: it has not been built.\n`;
  }

  const port = ({ settings }) => settings.values.PORT ?? 8000;

  function curl(start) {
    const body = python.json({ model: start.command.names[0], messages: [{ role: "user", content: "Hello!" }] });
    return `curl http://localhost:${port(start)}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d ${python.quoted(body)}\n`;
  }

  function client(start) {
    return [
      "from openai import OpenAI",
      "",
      `client = OpenAI(base_url="http://localhost:${port(start)}/v1", api_key="none")`,
      "answer = client.chat.completions.create(",
      `    model=${python.json(start.command.names[0])},`,
      '    messages=[{"role": "user", "content": "Hello!"}],',
      ")",
      "print(answer.choices[0].message.content)",
      "",
    ].join("\n");
  }

  /** Return every way to start an image and to ask it, by name. */
  function outputs(start, environment) {
    const { image, command } = start;
    return {
      docker: `${dockerRun(image, environment)}\n`,
      compose: compose(image, environment),
      sparkrun: recipe("sparkrun", image, command),
      eugr: recipe("eugr", image, command),
      curl: curl(start),
      python: client(start),
    };
  }

  Object.assign(ImagePicker, { outputs, dockerRun, given });
})();
