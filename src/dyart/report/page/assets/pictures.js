// Pictures of examples: one sheet holds the images, another the steps to their boundary points; a point is their sum.

const sheets = new Map();

function pixels(source) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      resolve(context.getImageData(0, 0, canvas.width, canvas.height));
    };
    image.onerror = () => reject(new Error("a picture of this page is damaged"));
    image.src = source;
  });
}

function read(source) {
  if (!sheets.has(source)) sheets.set(source, pixels(source));
  return sheets.get(source);
}

// The pixels of one place of a sheet, red, green and blue.
function tile(sheet, size, place) {
  const left = (place % size.columns) * size.width;
  const top = Math.floor(place / size.columns) * size.height;
  return Array.from({ length: size.width * size.height }, (_, at) => {
    const start = 4 * ((top + Math.floor(at / size.width)) * sheet.width + left + (at % size.width));
    return [0, 1, 2].map((channel) => sheet.data[start + channel]);
  });
}

function rgb(name) {
  return colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);
}

// One canvas each for the image, its boundary point and the difference; appended to a place once the sheet is read.
async function showTrio(trio, run, row) {
  const points = data.runs[run].points;
  const place = points.place?.[row] ?? -1;
  const wanted = `${run}/${row}`;
  trio.dataset.wanted = wanted;
  trio.hidden = !points.sheet;
  if (place < 0) {
    const words = document.createElement("p");
    words.textContent = "no picture of this one on the page";
    trio.replaceChildren(words);
    return;
  }
  const made = points.sheet;
  const size = data.examples[made.examples];
  const [examples, ways] = await Promise.all([read(size.uri), read(made.steps)]);
  if (trio.dataset.wanted !== wanted) return; // another one was asked for meanwhile
  const images = tile(examples, size, made.at[place]);
  const steps = tile(ways, size, place).map((step) => step.map((value) => (value - 128) / made.levels)); // of the largest
  const reach = made.reach[place]; // the largest change, in grey levels of 255
  const enlarged = reach > 0 ? `difference ×${Number((127 / reach).toPrecision(2)).toLocaleString("en")}` : "difference below 1/255";
  const [none, more, less] = [rgb("@wash"), rgb("@orange"), rgb("@blue")];
  const draw = {
    image: (image) => image,
    "boundary point": (image, step) => image.map((value, channel) => value + reach * step[channel]),
    [enlarged]: (image, step) => {
      if (!size.grey) return step.map((value) => 128 + 127 * value);
      const end = step[0] > 0 ? more : less;
      return none.map((value, channel) => value + Math.abs(step[0]) * (end[channel] - value));
    },
  };
  trio.replaceChildren(...Object.entries(draw).map(([words, value]) => {
    const box = document.createElement("div");
    const canvas = document.createElement("canvas");
    const label = document.createElement("span");
    canvas.width = size.width;
    canvas.height = size.height;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", words);
    label.textContent = words;
    label.setAttribute("aria-hidden", "true");
    const context = canvas.getContext("2d");
    const drawn = context.createImageData(size.width, size.height);
    images.forEach((image, at) => drawn.data.set([...value(image, steps[at]), 255], 4 * at));
    context.putImageData(drawn, 0, 0);
    box.append(canvas, label);
    return box;
  }));
}
