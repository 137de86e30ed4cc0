type Colour = readonly [red: number, green: number, blue: number, alpha: number];

interface TextElement {
  readonly text: string;
  readonly textColour: Colour;
  readonly backgrounds: readonly Colour[];
}

/** Runs in the page: reads the colour and the backgrounds of every element with text. */
export const READ_COLOURS = `(() => {
  const parse = (colour) => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  return [...document.querySelectorAll('body *')]
    .filter((element) => element.checkVisibility() && !element.closest('svg, [disabled]')
      && [...element.childNodes].some((node) => node.nodeType === 3 && node.nodeValue.trim() !== ''))
    .map((element) => {
      const backgrounds = [];
      for (let each = element; each !== null; each = each.parentElement) backgrounds.push(parse(getComputedStyle(each).backgroundColor));
      return { text: element.textContent.slice(0, 40), textColour: parse(getComputedStyle(element).color), backgrounds };
    });
})()`;

/** The elements below the contrast of WCAG AA. */
export function findLowContrast(elements: readonly TextElement[]): string[] {
  return elements.flatMap(({ text, textColour, backgrounds }) => {
    const background = backgrounds.find(([, , , alpha]) => alpha === 1) ?? [255, 255, 255, 1];
    const ratio = computeContrastRatio(textColour, background);
    return ratio < 4.5 ? [`${text}: ${ratio.toFixed(2)}`] : [];
  });
}

function computeContrastRatio(a: Colour, b: Colour): number {
  const [high, low] = [computeLuminance(a), computeLuminance(b)].sort((x, y) => y - x);
  return ((high ?? 0) + 0.05) / ((low ?? 0) + 0.05);
}

function computeLuminance([red, green, blue]: Colour): number {
  const [r, g, b] = [red, green, blue].map((value) => {
    const level = value / 255;
    return level <= 0.03928 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * (r ?? 0) + 0.7152 * (g ?? 0) + 0.0722 * (b ?? 0);
}
