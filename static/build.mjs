/**
 * Builds the page: `src/` and the libraries it uses become the few files of `dist/`, which the
 * server reads at its start. `node build.mjs --watch` builds again at each change.
 */

import { build, context } from "esbuild";
import { cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { reference } from "./reference.mjs";

process.chdir(import.meta.dirname);

const OUT = "dist";

/** @type {import("esbuild").BuildOptions} */
const options = {
  absWorkingDir: import.meta.dirname,
  entryPoints: [
    ...["src/main.js", "src/style.css", "src/view/highlighter.js"],
    ...["src/docs/docs.js", "src/docs/docs.css"],
  ],
  outdir: OUT,
  entryNames: "[name]",
  chunkNames: "[name]-[hash]",
  bundle: true,
  splitting: true, // what only some answers need is fetched when the first of them comes
  format: "esm",
  target: "es2022",
  charset: "utf8",
  minify: true,
  legalComments: "none", // all licences are in one file
  metafile: true,
  preserveSymlinks: true, // packages are known by their place here, wherever that leads
  logLevel: "warning",
};

/**
 * The licences of all packages of which something is in the build.
 * @param {import("esbuild").Metafile} metafile
 */
async function licences(metafile) {
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) packages.add(found[1]);
  }
  if (packages.size === 0) throw new Error("no package is in the build: their licences are missing");
  const parts = ["The page contains parts of these packages.\n"];
  for (const name of [...packages].sort()) {
    const folder = `node_modules/${name}`;
    const { version, license } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
    const files = (await readdir(folder)).filter((file) => /^(licen[cs]e|notice)/i.test(file));
    if (files.length === 0) throw new Error(`${name} comes without the text of its licence`);
    parts.push(`\n${"=".repeat(80)}\n${name} ${version} (${license})\n`);
    for (const file of files.sort()) parts.push(await readFile(`${folder}/${file}`, "utf8"));
  }
  await writeFile(`${OUT}/LICENSES.txt`, parts.join("\n"));
}

async function copies() {
  for (const file of ["index.html", "favicon.svg"]) await cp(file, `${OUT}/${file}`);
}

/** The page about the API, and what the server says of fields, both out of one text. */
async function documentation() {
  const { html, contents, fields } = reference(await readFile("../docs/api.md", "utf8"));
  const page = await readFile("docs.html", "utf8");
  const filled = page.replace("<!-- contents -->", () => contents).replace("<!-- reference -->", () => html);
  await writeFile(`${OUT}/docs.html`, filled);
  await writeFile(`${OUT}/fields.json`, JSON.stringify(fields));
}

await rm(OUT, { recursive: true, force: true });
await mkdir(OUT);
await copies();
await documentation();
if (process.argv.includes("--watch")) {
  const watched = await context({ ...options, minify: false, sourcemap: "inline" });
  await watched.watch();
} else {
  const { metafile } = await build(options);
  await licences(metafile);
}
