// Builds assets/plotly.min.js: plotly.js with the traces and components that the charts of the dashboard use.
//
//   npm install --no-save plotly.js@4.1.1 esbuild@0.25 acorn@8 acorn-walk@8 && node dashboard/plotly_bundle.mjs
//
// Left out: other traces and components, the mode bar with its upload to a cloud, and the descriptions of attributes.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parse } from "acorn";
import { simple } from "acorn-walk";
import { build } from "esbuild";

const OUTPUT = fileURLToPath(new URL("assets/plotly.min.js", import.meta.url));
const SOURCE = "plotly.js/src";
const MODULES = [
  "traces/scatter", "traces/bar", "traces/heatmap", "components/annotations", "components/colorbar", "components/colorscale",
  "components/fx", "components/modebar", "components/selections", "components/shapes", "locale-en", "locale-en-us",
];
const ENTRY = `
  exports.version = require("${SOURCE}/version").version;
  require("plotly.js/build/plotcss");
  const { register } = require("${SOURCE}/registry");
  for (const [name, fn] of Object.entries(require("${SOURCE}/plot_api"))) {
    if (name[0] !== "_") exports[name] = fn;
    register({ moduleType: "apiMethod", name, fn });
  }
  register([${MODULES.map((name) => `require("${SOURCE}/${name}")`)}]);
  exports.Plots = { resize: require("${SOURCE}/plots/plots").resize };
`;

function withoutDescriptions(text) {
  const values = [];
  simple(parse(text, { ecmaVersion: "latest" }), {
    Property({ key, value, shorthand }) {
      if ((key.name ?? key.value) === "description" && !shorthand) values.push(value);
    },
  });
  const last = values.sort((a, b) => b.start - a.start);
  return last.reduce((code, { start, end }) => `${code.slice(0, start)}''${code.slice(end)}`, text);
}

const smaller = {
  name: "smaller",
  setup({ onLoad }) {
    onLoad({ filter: /components\/modebar\/(manage|buttons)\.js$/ }, () => ({ contents: "module.exports = () => {};" }));
    onLoad({ filter: /plotly\.js\/src\/.*\.js$/ }, ({ path }) => ({ contents: withoutDescriptions(readFileSync(path, "utf8")) }));
  },
};

const { version } = JSON.parse(readFileSync("node_modules/plotly.js/package.json", "utf8"));
await build({
  stdin: { contents: ENTRY, resolveDir: process.cwd() },
  outfile: OUTPUT,
  bundle: true,
  format: "iife",
  globalName: "Plotly",
  minify: true,
  target: "es2022",
  legalComments: "none",
  define: { global: "window", "define.amd": "false", "process.env.NODE_DEBUG": "false" },
  banner: { js: `/* plotly.js v${version}, built by dashboard/plotly_bundle.mjs. Licences: licenses/plotly.js-MIT.txt */` },
  loader: { ".css": "empty" },
  plugins: [smaller],
});
