#!/usr/bin/env python3
"""Recomputes the certificates of a run directory from its records, panels and manifest.

    python3 tools/recompute.py [--quick] RUN [RECIPE...]

A second program beside `kvassay verify`, which shares no code with it. Both follow docs/evidence.md,
docs/statistics.md and, for formats and windows, docs/recipes.md, for imports docs/import.md; names are theirs. It needs
Python 3.9 or later and nothing else. One line per certificate says how many figures were recomputed, those of the
records of its arms included; each difference has a line of its own. Exit code 0: none differs; 5: some do; 2: a file
cannot be read, which is named.

Left out: `tool`, `caveats`, `detail`, `server_engagement`, `needed_80` and `needed_95` of rules on counts; digests of
files that a run does not keep (model, tokenizer, sources); what only the model can tell (outputs, likelihoods,
`changed`, `saturated`, dynamic scales: they are added up and compared as they stand); certificates that `certify
--protocol` issued under another protocol than the run's. On servers, `engagement_unproved` is taken from the
certificate. Fields that the documents do not name are passed over. Letters are those that Python's `unicodedata`
lets one tell; Unicode's property Alphabetic differs in some combining marks and symbols.
`--quick` leaves the bootstrap out: its bounds and standard errors are taken from the certificate.
"""
import argparse
import contextlib
import functools
import hashlib
import json
import math
import os
import re
import struct
import sys
import unicodedata
from array import array
from operator import add, truediv
from statistics import NormalDist
from typing import NamedTuple, Optional

MASK_32, MASK_64 = 2**32 - 1, 2**64 - 1


# --- Files -----------------------------------------------------------------------------------------------------------

class Unreadable(Exception):
    """A file that cannot be read, and why."""


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error


def object_of(pairs):
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has a key twice")
    return fields


def parse(path, data):
    try:
        value = json.loads(data, object_pairs_hook=object_of)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{path}: no JSON object")
    return value


def read_json(path):
    return parse(path, read_bytes(path))


def read_lines(path):
    """Lines of a JSONL file as (bytes without line feed, object); none where there is no file."""
    if not os.path.exists(path):
        return []
    lines = read_bytes(path).split(b"\n")[:-1]
    return [(line, parse(f"{path}:{number}", line)) for number, line in enumerate(lines, 1)]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def canonical_json(value):
    if isinstance(value, dict):
        fields = (json.dumps(key, ensure_ascii=False) + ":" + canonical_json(value[key]) for key in sorted(value))
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if isinstance(value, float) and "e" in repr(value):
        mantissa, exponent = repr(value).split("e")
        if int(exponent) == -5:  # Python goes over to exponents one power of ten earlier.
            return ("-" if value < 0 else "") + "0.0000" + mantissa.lstrip("-").replace(".", "")
        return f"{mantissa}e{int(exponent)}"
    return json.dumps(value, ensure_ascii=False)


# --- Random numbers --------------------------------------------------------------------------------------------------

def philox(block, streams, lanes, seed):
    """Philox2x64-10 of one block of many streams at once: a stream has 128 bits of the integers, so that the products
    of one do not reach into the next. `streams` holds their numbers, `lanes` a one for each."""
    low_halves = lanes * MASK_64
    x0, x1, key = lanes * block, streams, seed
    for _ in range(10):
        product = x0 * 0xD2B74407B1CE6E93
        x0, x1 = (product >> 64 & low_halves) ^ lanes * key ^ x1, product & low_halves
        key = key + 0x9E3779B97F4A7C15 & MASK_64
    return x0, x1


def numbers_of(stream, seed, bits):
    """Numbers of 32 or 64 bits of one stream."""
    block = 0
    while True:
        for x in philox(block, stream, 1, seed):
            yield from (x & MASK_32, x >> 32) if bits == 32 else (x,)
        block += 1


def below(numbers, bound, bits):
    for number in numbers:
        if number * bound % 2**bits >= 2**bits % bound:
            return number * bound >> bits


def shuffle(items, stream, seed):
    numbers = numbers_of(stream, seed, 64)
    for place in range(len(items) - 1, 0, -1):
        other = below(numbers, place + 1, 64)
        items[place], items[other] = items[other], items[place]


def words_of(number, count):
    """The low 32 bits and the next 32 bits of each 128 bits."""
    words = array("I", number.to_bytes(16 * count, "little"))
    if sys.byteorder == "big":
        words.byteswap()
    return words[0::4], words[1::4]


@functools.lru_cache(maxsize=None)
def draws(documents, resamples, seed):
    """Indices that the resamples draw, as one column per draw: `draws[j][i]` is draw `j` of resample `i`."""
    lanes = (2 ** (128 * resamples) - 1) // (2**128 - 1)
    streams = int.from_bytes(b"".join(stream.to_bytes(16, "little") for stream in range(resamples)), "little")
    least, rejected = 2**32 % documents, set()
    progress(f"drawing {resamples} resamples of {documents} documents")
    code = "B" if documents <= 256 else "H" if documents <= 65536 else "I"
    columns = []
    for block in range((documents + 3) // 4):
        for x in philox(block, streams, lanes, seed):
            for words in (x & lanes * MASK_32, x >> 32 & lanes * MASK_32):
                if len(columns) < documents:
                    rest, index = words_of(words * documents, resamples)
                    columns.append(array(code, index))
                    if least and min(rest) < least:
                        rejected.update(i for i, low in enumerate(rest) if low < least)
    for i in rejected:  # All that follow the rejected word move up by one.
        words = numbers_of(i, seed, 32)
        for column in columns:
            column[i] = below(words, documents, 32)
    return columns


# --- Bounds ----------------------------------------------------------------------------------------------------------

def z_of(tail):
    return -NormalDist().inv_cdf(tail)


def bisect(low, high, is_low):
    """Where `is_low` turns false, to the last bits."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle
        low, high = (middle, high) if is_low(middle) else (low, middle)


def clopper_pearson_upper(k, n, alpha):
    if k == n:
        return 1.0
    if k == 0:
        return -math.expm1(math.log(alpha) / n)
    log_choices = math.log(math.comb(n, k))

    def log_tail(p):
        """ln P(Bin(n, p) <= k) from its largest term downwards."""
        term, terms = 1.0, [1.0]
        for j in range(k, 0, -1):
            term *= j * (1 - p) / ((n - j + 1) * p)
            terms.append(term)
            if term < 1e-18:
                break
        return log_choices + k * math.log(p) + (n - k) * math.log1p(-p) + math.log(math.fsum(terms))

    return bisect(k / n, 1.0, lambda p: log_tail(p) > math.log(alpha))


def tango_score(d, lost, gained, n):
    b = (2 * n - gained + lost) * d - (lost + gained)
    c = -lost * d * (1 - d)
    root = math.sqrt(max(b * b - 8 * n * c, 0.0))
    q = (root - b) / (4 * n) if b <= 0 else -2 * c / (b + root)
    numerator, variance = gained - lost - n * d, n * (2 * q + d * (1 - d))
    if numerator == 0:
        return 0.0
    return numerator / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, numerator)


def tango_lower(lost, gained, n, alpha):
    z = z_of(alpha)
    if lost == n:
        return -1.0
    if lost == gained:
        return -z * math.sqrt(2 * lost + z * z) / (n + z * z)
    return bisect(-1.0, (gained - lost) / n, lambda d: tango_score(d, lost, gained, n) > z)


def tango_upper(lost, gained, n, alpha):
    return -tango_lower(gained, lost, n, alpha)


# --- Percentile bootstrap --------------------------------------------------------------------------------------------

def total(values):
    """One term after the other: `sum` of later versions of Python compensates."""
    return functools.reduce(add, values, 0.0)


def nll_point(native, candidate):
    """Differences, estimate, and whether all documents have the same ratio."""
    differences = [c - n for n, c in zip(native, candidate)]
    estimate = total(differences) / total(native)
    same = all(abs(d - estimate * n) <= 8 * 2.0**-52 * (abs(n) + abs(c))
               for d, n, c in zip(differences, native, candidate))
    return differences, estimate, same


def drawn_sums(values, columns):
    sums = list(map(values.__getitem__, columns[0]))
    for column in columns[1:]:
        sums = list(map(add, sums, map(values.__getitem__, column)))
    return sums


@functools.lru_cache(maxsize=None)
def resampled_ratios(native, candidate, resamples, seed):
    """Sorted values of the resamples."""
    columns = draws(len(native), resamples, seed)
    progress(f"adding up {resamples} resamples of {len(native)} documents")
    differences = nll_point(native, candidate)[0]
    return sorted(map(truediv, drawn_sums(differences, columns), drawn_sums(native, columns)))


def whole(product, rounding):
    nearest = round(product)
    return nearest if abs(product - nearest) <= 1e-9 * abs(product) else rounding(product)


def bootstrap_bound(native, candidate, alpha, upper, resamples, seed):
    """The bound and its Monte-Carlo standard error."""
    _, estimate, same = nll_point(native, candidate)
    if same:
        return estimate, 0.0
    values = resampled_ratios(tuple(native), tuple(candidate), resamples, seed)
    held = lambda rank: min(max(rank, 1), resamples)
    product = resamples * alpha
    rank = held(resamples - whole(product, math.floor) if upper else whole(product, math.ceil))
    s = math.sqrt(resamples * alpha * (1 - alpha))
    h = max(math.ceil(s), 1)
    first, last = held(rank - h), held(rank + h)
    error = (values[last - 1] - values[first - 1]) * s / (last - first) if last > first else 0.0
    return values[rank - 1], error


# --- Parsers: characters ---------------------------------------------------------------------------------------------

WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
THIN, UNREADABLE = "\u2009", "\ufffc"
SPACES, CURRENCY = frozenset(" \t" + THIN), frozenset("$€£¥₹¢")


def is_digit(char):
    return "0" <= char <= "9"


def is_numeral(char):
    return char != "" and unicodedata.category(char) in ("Nd", "Nl", "No")


def is_letter(char):
    if char == "" or char < "\x80":
        return char.isalpha()
    category = unicodedata.category(char)
    return (category[0] == "L" or category in ("Nl", "Mc") or category == "Mn" and not unicodedata.combining(char)
            or "Ⓐ" <= char <= "ⓩ")


def is_word(char):
    return is_letter(char) or unicodedata.category(char) in ("Nd", "Pc", "Mn", "Mc", "Me") or char in "\u200c\u200d"


def compiled(pattern, text, flags=0):
    """The pattern with \\s, \\w, \\d, \\p{L}, \\p{N}, which it has within brackets only, and \\b as Unicode has them:
    spelt out for the characters of the text."""
    return compiled_for(pattern, frozenset(char for char in text if char > "\x7f"), flags)


@functools.lru_cache(maxsize=4096)
def compiled_for(pattern, foreign, flags):
    chars = lambda test: "".join(re.escape(char) for char in sorted(foreign) if test(char))
    word = "A-Za-z0-9_" + chars(is_word)
    classes = {
        "b": f"(?:(?<=[{word}])(?![{word}])|(?<![{word}])(?=[{word}]))", "w": word, "s": re.escape(WHITE),
        "d": "0-9" + chars(lambda char: unicodedata.category(char) == "Nd"), "p{N}": "0-9" + chars(is_numeral),
        "p{L}": "A-Za-z" + chars(lambda char: unicodedata.category(char)[0] == "L")}
    spelt = re.sub(r"\\(\\|[bwsd]|p\{[LN]\})", lambda match: classes.get(match[1], match[0]), pattern)
    return re.compile(spelt, flags)


BOUNDARY = (r"^[ \t>*#_]*(?:(?:Question|Problem|Q)(?:[ ][\d]+)?[ \t*_]*:|(?:User|Human)[ \t*_]*:"
            r"|<\|(?:im_start|user|start_header_id|eot_id|im_end)\|?>)")
BEFORE_NUMBER = (r"(?:(?:the[\s]+)?(?:final[\s]+)?answer[\s]*(?:is|:|=)?|\\boxed|\\text|[a-z][\s]*="
                 r"|[\s*_`$€£¥({<\[:~≈=+\\\-−–])*(?:\.?[\d]|[^\x00-\x7F\p{L}\s]*[\p{N}])")
ITEM = r"[\s*_]*[\d]+[.):][\s*_]+[A-Za-z]"
PHRASE = r"\banswer\b[*_]*[\s]*(\bis\b|:|=)[\s]*:?[\s*_:]*"
SENTENCE_END = r"[.!?]+(?:[ \t*_)\]]|\Z)|\n"
NOTE = r"<<([^<>\n]*)>>([$€£]?[-+−]?[0-9])?"
EMPHASIS = r"(^|[^\w*\\])\*([^*\s](?:[^*\n]*[^*\s])?)\*(\Z|[^\w*])"
LATEX = r"\\[dtc]?frac\{([0-9]+)\}\{([0-9]+)\}|\\([A-Za-z]+)|\\(.?)|\{,\}|[{}]"
NUMBER = (r"(?:[0-9]{1,3}[ ](?=[0-9]{3}(?![0-9]))|(?<!\.)\.(?=[0-9]))?[0-9FOREIGN]"
          r"(?:[0-9FOREIGN]|(?<=[0-9])[.,'’_:/–\u2009](?=[0-9]))*")
COMMANDS = {name: char for names, char in (
    ("frac dfrac tfrac cfrac sqrt binom log ln pi infty sum prod", UNREADABLE), ("times cdot", "×"), ("div", "÷"),
    ("pm mp", "±"), ("approx sim simeq", "≈"), ("dots ldots cdots", "…")) for name in names.split()}
SCALES = "hundred thousand million billion trillion dozen score half third quarter".split()


# --- Parsers: numbers ------------------------------------------------------------------------------------------------

def normalise(text):
    for chars, replacement in (("\u2212\ufe63\uff0d", "-"), ("\xa0\u2007\u2008\u200a\u202f", THIN),
                               ("\u200b\u200c\u200d\u2060\ufeff\r", "")):
        text = text.translate({ord(char): replacement for char in chars})
    note = lambda match: " " + (match[2] or match[1].rsplit("=", 1)[-1] + " ")
    text = without_latex(re.sub(NOTE, note, text))
    text = re.sub(r"(?<=[0-9])(\*\*)(?=[0-9])|\*\*|~~|`", lambda match: "^" if match[1] else " ", text)
    return compiled(EMPHASIS, text).sub(r"\1 \2 \3", text)


def without_latex(text):
    out, end = "", 0
    for match in re.finditer(LATEX, text, re.S):
        out += text[end:match.start()]
        end, command, char = match.end(), match[3], match[4]
        if match[1]:
            out += ("" if out.endswith("-") else " ") + match[1] + "/" + match[2]
        elif command:
            out += COMMANDS.get(command, " ")
        elif char is not None:
            out += char if char in "$%#&_" else THIN if char in ",:;" else "" if char == "!" else " "
        elif match[0] == "{,}":
            out += ","
        elif match[0] == "}" or not out.endswith(("^", "_")):
            out += " "
    return out + text[end:]


class Number(NamedTuple):
    start: int
    end: int
    value: Optional[str]  # An exact decimal; none where it cannot be read.


def decimal(text, exponent=0):
    """Digits with at most one point, times a power of ten; none of anything else."""
    if not re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", text):
        return None
    before, _, after = text.partition(".")
    digits, point = before + after, len(before) + exponent
    digits = ("0" * -point + digits).ljust(point, "0")
    point = max(point, 0)
    fraction = digits[point:].rstrip("0")
    return (digits[:point].lstrip("0") or "0") + ("." + fraction if fraction else "")


def quotient(above, below_line):
    if not all(re.fullmatch("[0-9]+", part) and len(part.lstrip("0")) < 40 for part in (above, below_line)):
        return None
    above, below_line = int(above), int(below_line)
    if max(above, below_line) >= 2**128 or below_line == 0:
        return None
    if above * 10**128 % below_line:  # No denominator below 2^128 takes more decimals.
        return None
    return decimal(str(above * 10**128 // below_line), -128)


def number_value(body):
    if "/" in body:
        return quotient(*body.split("/", 1))
    separator = re.search("[,\u2009]", body)
    if not separator:
        return decimal(body)
    if not re.fullmatch(r"[1-9][0-9]{0,2}(?:SEP[0-9]{3})*(?:\.[0-9]+)?".replace("SEP", separator[0]), body):
        return None
    return decimal(body.replace(separator[0], ""))


def run_of(test, text, start):
    end = start
    while end < len(text) and test(text[end]):
        end += 1
    return end


def numbers(text):
    foreign = "".join(sorted({re.escape(char) for char in text if char > "\x7f" and is_numeral(char)}))
    pattern = re.compile(NUMBER.replace("FOREIGN", UNREADABLE + foreign))
    found, at = [], 0
    while True:
        match = pattern.search(text, at)
        if not match:
            return found
        found.append(number_at(text, match))
        at = found[-1].end


def number_at(text, match):
    start, end, body = match.start(), match.end(), match[0]
    value = number_value(body)
    exponent = re.compile("[eE]([+-]?[0-9]+)").match(text, end)
    if exponent and decimal(body) is not None:
        following = text[exponent.end():exponent.end() + 1]
        if not is_letter(following) and not is_numeral(following):
            end, power = exponent.end(), exponent[1]
            small = len(power.lstrip("+-").lstrip("0")) < 4 and abs(int(power)) <= 100
            value = decimal(body, int(power)) if small else None
    tail = re.compile("[ \t\u2009]*\\^[-+]?[0-9]*|[ \t\u2009]+[0-9]+/[0-9]+|\u2009[ \t\u2009]*[0-9]+").match(text, end)
    letters = text[end:run_of(is_letter, text, end)]
    if tail:
        end, value = tail.end(), None
    elif letters in "k K M B T bn mn x X n".split() or is_item(text, start, end):
        value = None
    sign = sign_before(text, start)
    if sign is None or is_scaled(text, end):
        value = None
    if sign == "-" and value not in (None, "0"):
        value = "-" + value
    return Number(start, end, value)


def line_before(text, end):
    return text[text.rfind("\n", 0, end) + 1:end]


def is_item(text, start, end):
    mark = re.compile("[.)][ \t\u2009]+").match(text, end)
    return bool(mark and set(line_before(text, start)) <= SPACES and is_letter(text[mark.end():mark.end() + 1]))


def is_scaled(text, end):
    words = [word for word in re.split("[ \t\u2009-]", text[end:end + 32].split("\n", 1)[0]) if word]
    for i, word in enumerate(words):
        while word and not is_letter(word[-1]):
            word = word[:-1]
        words[i] = word
    if len(words) > 2 and words[0] == "and" and words[1] in ("a", "one"):
        words = words[2:]
    word = words[0].lower() if words else ""
    return (word[:-1] if word.endswith("s") else word) in SCALES


def before_currency(text, end):
    """Where the text ends if currency at its end is left out, with one space at most behind each."""
    match = re.compile("(?:[$€£¥₹¢][ \t\u2009]?)*\\Z").search(text[:end])
    return match.start()


def sign_before(text, start):
    """'-', '+' or ''; none where the sign cannot be read."""
    end = before_currency(text, start)
    char = text[end - 1:end]
    nearest = lambda end: line_before(text, end).rstrip(" \t" + THIN)[-1:]
    if char in ("-", "+"):
        before = before_currency(text, end - 1)
        other = text[before - 1:before] if before else ""
        if other in SPACES:
            last = nearest(before)
            return None if is_digit(last) or last == ")" else char
        if is_digit(other) or other == ")":
            return ""
        return char if other in "\n([{<=:|>,;\"≈~*×÷/“'" else None
    if char in ("±", "–", "^") or is_letter(char) and end == start:
        return None
    if char == "_" and end > 1 and (is_letter(text[end - 2]) or is_numeral(text[end - 2])):
        return None
    if char in SPACES:
        spaces_from = len(text[:end].rstrip(" \t" + THIN))
        if text[spaces_from - 1:spaces_from] == "-":
            last = nearest(spaces_from - 1)
            return None if last and last in "=:([+-*×÷/" else ""
    return ""


def is_touched(text, number):
    """Whether an operator touches the number."""
    dash = lambda near: near[:1] in ("-", "–") and is_letter(near[1:2]) and is_letter(near[2:3])
    operator = lambda char: char != "" and char in "+-*×÷/^±–"
    operand = lambda char: is_letter(char) or is_numeral(char) or char in (")", "(", "%", "-")
    near = lambda chars: "".join(char for char in chars if char not in WHITE and char not in CURRENCY)[:3]
    left = near(reversed(line_before(text, number.start)))
    line = text[number.end:].split("\n", 1)[0]
    right = near(line)
    if not dash(left) and operator(left[:1]) and operand(left[1:2]):
        return True
    if line[:1] in ("/", "-"):
        return len(right) > 1 and not is_letter(right[1])
    return not dash(right) and operator(right[:1]) and (operand(right[1:2]) or right[1:2] == ".")


# --- Parsers: answers ------------------------------------------------------------------------------------------------

NO_NUMBER, AMBIGUOUS = "no number", "ambiguous"


def read_number(text):
    """An exact decimal, NO_NUMBER or AMBIGUOUS."""
    text = normalise(text)
    mark = max(text.rfind("="), text.rfind("≈"))
    if mark >= 0:
        before, after = text[:mark], text[mark:].lstrip("=≈>")
        if re.search("[=≈]", before) and re.search(", |;| and | or ", before):
            return AMBIGUOUS
        text = after if any(map(is_numeral, after)) else before
    text = text.strip(WHITE)
    if text.startswith("- ") and any(map(is_digit, text)):
        return AMBIGUOUS
    found = numbers(text)
    if not found:
        return NO_NUMBER
    before = text[:found[0].start].lower().replace("’", "'")
    words = "".join(char if is_letter(char) or is_numeral(char) or char == "'" else " " for char in before).split(" ")
    if any(word in ("not", "no", "never") or word.endswith("n't") for word in words):
        return AMBIGUOUS
    value = found[0].value
    if value is None or any(number.value != value or is_touched(text, number) for number in found):
        return AMBIGUOUS
    return value


@functools.lru_cache(maxsize=None)
def answer_in(text):
    value = read_number(text)
    return None if value in (NO_NUMBER, AMBIGUOUS) else value


def own_answer(output):
    text = output.rsplit("</think>", 1)[-1]
    for match in compiled(BOUNDARY, text, re.M).finditer(text):
        if any(map(is_digit, text[:match.start()])):
            return text[:match.start()]
    return text


@functools.lru_cache(maxsize=None)
def last_number(text):
    text = normalise(text)
    found = numbers(text)
    return found[-1].value if found and not is_touched(text, found[-1]) else None


@functools.lru_cache(maxsize=None)
def gsm8k(output):
    text = own_answer(output)
    before_number = compiled(BEFORE_NUMBER, text, re.I)
    end = len(text)
    while (mark := text.rfind("####", 0, end)) >= 0:
        line, _, rest = text[mark + 4:end].lstrip(WHITE).partition("\n")
        if before_number.match(line):
            if not compiled(ITEM, line).match(line):
                return answer_in(line)
            if end == len(text) and not rest.strip(WHITE):
                return None
        end = len(text[:mark].rstrip("#"))
    if (box := text.rfind("\\boxed{")) >= 0:
        return answer_in(boxed(text[box + 7:]))
    for match in reversed(list(compiled(PHRASE, text, re.I).finditer(text))):
        after = text[match.end():]
        sentence_end = re.search(SENTENCE_END, after)
        sentence = after[:sentence_end.start()] if sentence_end else after
        if match[1] in (":", "=") and not counts_as_answer(after, len(sentence), before_number):
            continue
        value = read_number(sentence)
        if value != NO_NUMBER:
            return None if value == AMBIGUOUS else value
    return last_number(text)


def boxed(text):
    depth = 1
    for i, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            return text[:i]
    return text


def counts_as_answer(after, sentence, before_number):
    line = after.split("\n", 1)[0]
    behind = line[sentence:]
    return before_number.match(line) and "=" not in line and not any(is_letter(c) or is_numeral(c) for c in behind)


@functools.lru_cache(maxsize=None)
def needle(output, gold):
    value = decimal(gold)
    if value is None or sum(map(is_numeral, gold)) < 5:
        return output.strip(WHITE) == gold
    text = normalise(output)
    found = [number for number in numbers(text) if sum(map(is_numeral, text[number.start:number.end])) >= 5]
    return bool(found) and all(number.value == value for number in found)


# --- Stored bytes ----------------------------------------------------------------------------------------------------

LARGEST = {"e4m3": 448, "e5m2": 57344, "int8": 127}


class Layer(NamedTuple):
    number: int
    kv_heads: int
    head_dim: int
    window: Optional[int]


def layers_of(geometry):
    """Layers that store keys and values."""
    groups = geometry.get("attention_layers") or [{**geometry, "layers": range(geometry["layers"])}]
    layers = (Layer(number, group["kv_heads"], group["head_dim"], group.get("window"))
              for group in groups for number in group["layers"])
    return sorted(layer for layer in layers if layer.number not in geometry.get("recurrent_layers", ()))


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


# Bytes of a group, and its elements; the last six are blocks of llama.cpp.
GROUPS = {"int4": (20, 32), "int4-64": (36, 64), "q8_0": (34, 32), "q5_1": (24, 32), "q5_0": (22, 32),
          "q4_1": (20, 32), "q4_0": (18, 32), "iq4_nl": (18, 32)}


def vector_bytes(form, elements):
    form, _, scales = form.partition(":")
    if form in GROUPS:
        return GROUPS[form][0] * -(-elements // GROUPS[form][1])
    return {"native": 2, "e4m3": 1, "e5m2": 1, "int8": 1}[form] * elements + 4 * (scales == "dynamic")


class Recipe:
    def __init__(self, spec, geometry):
        options = dict(re.findall(r"([a-z-]+)=(.*?)(?=,[a-z-]+=|$)", spec))
        self.spec, self.layers, self.sink = spec, layers_of(geometry), int(options.get("sink", 0))
        self.forms = {component: options.get(component, "native") for component in "kv"}
        skipped = options.get("skip-layers")
        self.skipped = {int(layer) % geometry["layers"] for layer in skipped.split(",")} if skipped else set()

    def form(self, layer, component):
        return "native" if layer.number in self.skipped else self.forms[component]

    def token_bytes(self, layers, sink=False):
        """Of one token; with `sink` what a native one takes in quantised components."""
        forms = ((layer, self.form(layer, component)) for layer in layers for component in "kv")
        return sum(layer.kv_heads * vector_bytes("native" if sink else form, layer.head_dim)
                   for layer, form in forms if not sink or form != "native")

    def counters(self, component, tokens, layers, absmax, stored):
        """Counters of one component of `tokens` tokens, as far as they follow from anything."""
        native_tokens, values, scales = min(tokens, self.sink), 0, []
        elements = sum(tokens * layer.kv_heads * layer.head_dim for layer in layers)
        for layer in layers:
            form, heads = self.form(layer, component), layer.kv_heads
            values += heads * native_tokens * vector_bytes("native", layer.head_dim)
            values += heads * (tokens - native_tokens) * vector_bytes(form, layer.head_dim)
            if form.endswith(":fixed") and tokens > self.sink and absmax:
                largest = f32(absmax[layer.number][component])
                scales.append(max(f32(largest / LARGEST[form[:-6]]), 2.0**-126) if largest else 1.0)
        wanted = {"bytes": values, "elements": elements}
        if all(self.form(layer, component) == "native" for layer in layers):
            return {**wanted, "saturated": 0, "changed": 0, "scale_min": None, "scale_max": None}
        for counter in ("saturated", "changed"):
            wanted[counter] = min(stored.get(counter, 0), elements)
        return {**wanted, "scale_min": Scale(min(scales)), "scale_max": Scale(max(scales))} if scales else wanted


def memory_figures(recipe, native, kept):
    own, base = recipe.token_bytes(recipe.layers), native.token_bytes(native.layers)
    figures = {"page_tokens": 16, "bytes_per_token": own, "native_bytes_per_token": base,
               "sink_bytes": recipe.sink * recipe.token_bytes(recipe.layers, sink=True) or None,
               "saved": (base - own) / base if base else 0.0, "kept": None}
    windowed, full = ([layer for layer in recipe.layers if bool(layer.window) == has] for has in (True, False))
    if windowed and kept:
        figures["kept"] = {}
        for prefix, of in (("", recipe), ("native_", native)):
            figures["kept"][prefix + "bytes_per_token"] = of.token_bytes(full)
            figures["kept"][prefix + "window_bytes"] = sum(layer.window * of.token_bytes([layer]) for layer in windowed)
    return figures


# --- A run -----------------------------------------------------------------------------------------------------------

RECORD_TYPES = {"case": str, "case_sha256": str, "prompt_tokens": int, "output": str, "output_tokens": int,
                "output_ids": list, "targets": int, "secondary": dict, "kv": dict}


class Run:
    """What a run directory holds; files are read once."""

    def __init__(self, path):
        self.path, self.manifest = path, read_json(os.path.join(path, "run.json"))
        if "shard" in self.manifest:
            raise Unreadable(f"{path}/run.json: shard: found {self.manifest['shard']}, expected a whole run")
        self.protocol, self.geometry = self.manifest["protocol"], self.manifest["model"]["geometry"]
        self.worker, self.limit = self.manifest["worker"]["kind"], self.manifest.get("limit") or math.inf
        self.arms = {arm["arm"]: arm for arm in self.manifest["arms"]}
        of_role = lambda role: [arm["arm"] for arm in self.manifest["arms"] if arm["role"] == role]
        self.controls = of_role("control")
        self.aa = next((arm for arm in of_role("aa") if "unsupported" not in self.arms[arm]), None)
        self.panels = {panel["panel"]: panel for panel in self.manifest["panels"]}
        calibration = self.json("calibration.json")
        self.absmax = calibration["layers"] if calibration else None
        self.plans = {panel_name(plan): plan for plan in self.protocol["panels"]}
        rules = self.protocol["rules"]["nll"]
        self.resampling = (rules["resamples"], rules["seed"])

    def file(self, name):
        return os.path.join(self.path, *name.split("/"))

    @functools.lru_cache(maxsize=None)
    def json(self, name):
        """None where there is no such file."""
        return read_json(self.file(name)) if os.path.exists(self.file(name)) else None

    @functools.lru_cache(maxsize=None)
    def cases(self, panel):
        """Cases of the run by name, each with the digest of its line, in order."""
        lines = read_lines(self.file(self.panels[panel]["file"]["path"]))[1:]
        return {case["case"]: (sha256(line), case) for line, case in lines[:min(self.limit, len(lines))]}

    @functools.lru_cache(maxsize=None)
    def records(self, arm, panel, kind=""):
        path = self.file(f"arms/{arm}/{panel}{kind}.jsonl")
        records = [record for _, record in read_lines(path)]
        for number, record in enumerate(records, 1):
            for field, types in RECORD_TYPES.items():
                if not isinstance(record.get(field, None if field.startswith("case") else types()), types):
                    raise Unreadable(f"{path}:{number}: {field} is missing, or of another type than {types.__name__}")
        return records

    def run_panels(self):
        return [panel for panel in self.panels if "unsupported" not in self.panels[panel]]

    def control_name(self, arm):
        """As the protocol has it: arms are called after controls where there are several."""
        names = self.protocol["controls"]
        return arm[len("control-"):] if len(names) > 1 else names[0]

    @functools.lru_cache(maxsize=None)
    def by_case(self, arm, panel):
        """Records of the panel's cases, under their name and digest, by case."""
        found = {}
        for record in self.records(arm, panel):
            if self.cases(panel).get(record["case"], [None])[0] == record["case_sha256"]:
                found.setdefault(record["case"], []).append(record)
        return found

    def sole_records(self, arm, panel):
        """Of a case with several records nothing says which one counts."""
        return [records[0] for records in self.by_case(arm, panel).values() if len(records) == 1]

    @functools.lru_cache(maxsize=None)
    def outcomes(self, arm, panel):
        """Right or wrong, or mean NLL, by case; of cases without an outcome nothing."""
        found = {}
        for record in self.sole_records(arm, panel):
            name = record["case"]
            if "error" in record:
                continue
            if "targets" not in record:
                found[name] = scored(record, self.cases(panel)[name][1])["correct"]
            elif is_finite(record.get("nll_sum")):
                found[name] = record["nll_sum"] / record["targets"]
        return found

    def pairs(self, control, candidate, panel):
        """(name, control's outcome, candidate's), in the order of the panel."""
        ours, theirs = self.outcomes(candidate, panel), self.outcomes(control, panel)
        return [(case, theirs[case], ours[case]) for case in self.cases(panel) if case in ours and case in theirs]


def panel_name(plan):
    length = plan.get("length", 0)
    return plan["kind"] + (f"-{length // 1024}k" if length and length % 1024 == 0 else f"-{length}" if length else "")


def size_of(plan):
    """Cases that the protocol names."""
    return plan.get("cases", plan.get("documents"))


def is_finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def scored(record, case):
    """What parsers say of a record with an answer."""
    output, kept = record.get("output"), record.get("finish") != "length"
    if case["kind"] == "retrieval":
        return {"correct": needle(output, case["gold"]) and kept, "depth": case["depth"]}
    if case["kind"] == "math":
        gold, answer = answer_in(case["gold"]), gsm8k(output)
        return {"answer": answer, "correct": answer == gold and kept,
                "secondary": {"gsm8k-last-number/1": last_number(own_answer(output)) == gold and kept}}
    wanted, gold = {"correct": record.get("correct")}, case.get("gold")
    if output is not None and gold is not None and "secondary" in record:
        if "needle/1" in record["secondary"]:
            wanted["secondary"] = {"needle/1": needle(output, gold)}
        else:
            wanted["answer"] = gsm8k(output)
            wanted["secondary"] = {"gsm8k/1": wanted["answer"] == answer_in(gold.rsplit("####", 1)[-1])}
    return wanted


def expected_record(run, arm, digest, case, record):
    prompt = len(case["prompt_ids"])
    wanted = {"case": case["case"], "case_sha256": digest, "prompt_tokens": prompt}
    if "error" in record:
        return wanted
    if case["kind"] == "nll":
        wanted["targets"], tokens = case["targets"], prompt - 1
    else:
        wanted.update(scored(record, case))
        tokens = prompt + record.get("output_tokens", 0) - 1
        if "output_ids" in record:
            wanted["output_tokens"] = len(record["output_ids"])
    if "kv" in record:
        recipe = Recipe(run.arms[arm]["recipe"], run.geometry)
        wanted["kv"] = {component: recipe.counters(component, tokens, recipe.layers, run.absmax,
                                                   record["kv"].get(component, {})) for component in "kv"}
    return wanted


def compare_records(run, arm, comparison):
    for panel in run.run_panels():
        cases, records, file = run.cases(panel), run.records(arm, panel), f"arms/{arm}/{panel}.jsonl"
        for record in records:
            name = record["case"]
            if name in cases:
                comparison.compare(f"{file} {name}", record, expected_record(run, arm, *cases[name], record), "record")
        names = list(dict.fromkeys(record["case"] for record in records))
        in_order = [name for name in names if name in cases] == [name for name in cases if name in names]
        comparison.compare(f"{file}, in the order of the panel", in_order, True, "file")


# --- A certificate ---------------------------------------------------------------------------------------------------

REASONS = {
    "unsupported": ("arm_unsupported", "panel_unsupported"),
    "descriptive": ("protocol_changed", "protocol_unproved", "model_undeclared", "recipe_undeclared", "post_hoc",
                    "panel_undeclared", "objective_undeclared"),
    "incomplete": ("errored_records", "duplicate_records", "non_finite_records", "unknown_records", "missing_records",
                   "fewer_cases", "limit", "no_panel", "resource_limit", "resources_unknown", "missing_files"),
    "not_established": ("control_noise", "engagement_unproved", "control_too_weak", "bound_undefined",
                        "bound_exceeds_limit")}
PARSERS = {"math": "gsm8k/1", "retrieval": "needle/1", "nll": ""}
METHODS = {"gross_loss": "clopper-pearson", "retrieval": "clopper-pearson", "net_change": "tango",
           "nll": "percentile-bootstrap"}


class Certificate:
    """Recomputes one certificate; `stored` is read for what is left out only."""

    def __init__(self, run, arm, stored, quick):
        self.run, self.arm, self.stored, self.quick = run, arm, stored, quick
        self.protocol, self.rules = run.protocol, run.protocol["rules"]
        self.recipe = Recipe(run.arms[arm]["recipe"], run.geometry)
        self.arms = [name for name in (arm, *run.controls, run.aa) if name]
        self.gaps = {panel: self.gaps_of(panel, (self.arm, *run.controls)) for panel in run.plans}

    def expected(self):
        run, manifest = self.run, self.run.manifest
        weights = sorted(file["sha256"] for file in manifest["model"]["files"]
                         if file["path"].endswith((".safetensors", ".gguf")))
        model = dict(manifest["model"])
        if weights:
            model["weights_sha256"] = sha256("".join(digest + "\n" for digest in weights).encode())
        known = run.worker != "import"
        memory = memory_figures(self.recipe, Recipe("native", run.geometry), known and run.worker != "http")
        cost = {field: memory[field] for field in ("bytes_per_token", "native_bytes_per_token", "sink_bytes")}
        return {
            "schema": "kvassay.certificate/1",
            "protocol": {"name": self.protocol["name"], "sha256": sha256(canonical_json(self.protocol).encode())},
            "model": model, "worker": manifest["worker"], "servers": manifest.get("servers"),
            "recipe": {"name": self.arm, "spec": self.recipe.spec, **cost},
            "objectives": {name: self.objective(name) for name in ("preservation", "aggregate")},
            "degradation": [self.degradation(panel) for panel in run.plans],
            "aa": self.aa(), "answers": self.answers(), "engagement": self.engagement(), "memory": memory,
            "resources": self.resources(), "counts": {**self.counts(self.arm), "controls": Keyed(
                (run.control_name(control), self.counts(control)) for control in run.controls)}}

    # Rules

    def rule(self, name, panel, control):
        """The rule's figures, and whether it holds; none where there is nothing to compare."""
        pairs, rule = self.run.pairs(control, self.arm, panel), self.rules[name]
        alpha, limit = self.protocol["family_alpha"] / rule["divisor"], rule["limit"]
        figures = {"rule": name, "panel": panel, "control": self.run.control_name(control), "method": METHODS[name],
                   "pairs": len(pairs)}
        if len(pairs) < (2 if name == "nll" else 1):
            return None, None
        if name == "nll":
            found, bound = self.nll_figures(pairs, alpha, self.stored_bound(figures))
        else:
            found, bound = proportion_figures(name, pairs, alpha)
        passes = bound >= limit if name == "net_change" else bound <= limit
        return {**figures, **found, "limit": limit, "alpha": alpha, "pass": passes}, passes

    def stored_bound(self, figures):
        for objective in self.stored.get("objectives", {}).values():
            for rule in objective.get("rules", []):
                if all(rule.get(field) == figures[field] for field in ("rule", "panel", "control")):
                    return rule["bound"]
        return math.nan

    def nll_figures(self, pairs, alpha, stored_bound):
        native, candidate = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
        differences, estimate, same = nll_point(native, candidate)
        mean = total(native) / len(pairs)
        squares = total((d - estimate * n) * (d - estimate * n) for d, n in zip(differences, native))
        figures = {"control_mean": mean, "candidate_mean": total(candidate) / len(pairs), "estimate": estimate,
                   "document_sd": math.sqrt(squares / (len(pairs) - 1)) / mean, "influence": None}
        most = max(range(len(pairs)), key=lambda i: abs(differences[i]))
        bound_of = lambda native, candidate: bootstrap_bound(native, candidate, alpha, True, *self.run.resampling)
        if len(pairs) > 2 and not same:
            figures["influence"] = {"case": pairs[most][0], "share": differences[most] / total(map(abs, differences))}
        if self.quick:
            return figures, stored_bound
        figures["bound"], figures["monte_carlo_se"] = bound_of(native, candidate)
        if figures["influence"]:
            rest = [[*values[:most], *values[most + 1:]] for values in (native, candidate)]
            figures["influence"]["bound_without"] = bound_of(*rest)[0]
        return figures, figures["bound"]

    def objective(self, objective):
        names = {"math": "gross_loss" if objective == "preservation" else "net_change"}
        wanted = [(names.get(plan["kind"], plan["kind"]), panel, control) for panel, plan in self.run.plans.items()
                  if panel in self.run.run_panels() for control in self.run.controls]
        found = [self.rule(*rule) for rule in wanted]
        rules = [figures for figures, _ in found if figures]
        reasons = self.reasons(objective)
        if any(figures is None for figures, _ in found):
            reasons.add("bound_undefined")
        if any(passes is False for _, passes in found):
            reasons.add("bound_exceeds_limit")
        verdict, reason = next(((verdict, reason) for verdict, listed in REASONS.items() for reason in listed
                                if reason in reasons), ("pass", None))
        outlook = [outlook_of(rule) for rule in rules if not rule["pass"]]
        gaps = [gap for gap in REASONS["incomplete"] if gap in reasons and not self.is_by_nature(gap)]
        return {"verdict": verdict, "reason": reason, "rules": rules,
                "incomplete": gaps[0] if gaps and verdict == "descriptive" else None,
                "outlook": outlook if reason == "bound_exceeds_limit" else None}

    def degradation(self, panel):
        run, bounds = self.run, []
        alpha = self.protocol["family_alpha"] / (
            len(self.protocol["models"]) * len(self.protocol["candidates"]) * len(self.protocol["panels"]))
        is_nll = run.plans[panel]["kind"] == "nll"
        wanted = {"endpoint": panel, "alpha": alpha}
        for control in run.controls if panel in run.run_panels() else ():
            pairs = run.pairs(control, self.arm, panel)
            outcomes = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
            if len(pairs) < (2 if is_nll else 1):
                continue
            if is_nll and self.quick:
                return wanted
            bounds.append(bootstrap_bound(*outcomes, alpha, False, *run.resampling)[0] if is_nll else
                          Close(tango_upper(*lost_and_gained(pairs), len(pairs), alpha)))
        complete = len(bounds) == len(self.protocol["controls"]) and not self.gaps[panel]
        bound = (min if is_nll else max)(bounds, default=None)
        harm = bound is not None and (bound > 0 and len(pairs) >= 32 if is_nll else bound < 0)
        return {**wanted, "bound": bound,
                "established": harm and complete and not self.reasons(None).intersection(REASONS["descriptive"])}

    # Verdicts

    def involved(self):
        """Arms that the certificate rests on."""
        return [self.arm, *self.run.controls, *([self.run.aa] if self.run.aa else [])]

    def gaps_of(self, panel, arms):
        """Why the evidence of these arms on a panel is incomplete."""
        run, plan, gaps = self.run, self.run.plans[panel], set()
        if panel not in run.panels:
            return {"missing_records"}
        if panel not in run.run_panels() or "unsupported" in run.arms[self.arm]:
            return gaps
        size = size_of(plan)
        if run.panels[panel]["cases"] < size:
            gaps.add("fewer_cases")
        if run.limit < size:
            gaps.add("limit")
        for arm in arms:
            by_case, sole = run.by_case(arm, panel), run.sole_records(arm, panel)
            tests = {"errored_records": any("error" in record for record in sole),
                     "duplicate_records": len(sole) < len(by_case),
                     "unknown_records": sum(map(len, by_case.values())) < len(run.records(arm, panel)),
                     "non_finite_records": any("targets" in record and not is_finite(record.get("nll_sum"))
                                               for record in sole),
                     "missing_records": len(by_case) < len(run.cases(panel))}
            gaps.update(reason for reason, applies in tests.items() if applies)
        return gaps

    def import_lacks(self):
        """Whether a log of an import did not end well, or its arms are paired by ids alone and have different ones."""
        report = self.run.json("import.json") if self.run.worker == "import" else None
        if report is None:
            return False
        native, candidate = report["native"], report["candidate"]
        other_ids = report["pairing"] == "ids" and native["case_set_sha256"] != candidate["case_set_sha256"]
        return bool(native["unfinished"] or candidate["unfinished"]) or other_ids

    def is_by_nature(self, reason):
        """Whether the reason says no more than that an import has one panel, one control and what cases there were."""
        if self.run.worker != "import":
            return False
        lacks = self.import_lacks() or any("missing_records" in self.gaps.get(panel, ()) for panel in self.run.panels)
        return reason in ("no_panel", "fewer_cases") or reason == "missing_records" and not lacks

    def reasons(self, objective):
        """Every reason against an objective but those of its bounds."""
        run, protocol, reasons = self.run, self.protocol, set().union(*self.gaps.values())
        if run.aa:
            # What the second native arm lacks says nothing of noise.
            reasons.update(*(self.gaps_of(panel, [run.aa]) for panel in run.plans))
        model, digest = run.manifest["model"], sha256(canonical_json(protocol).encode())
        add_if = lambda reason, applies: reasons.add(reason) if applies else None
        add_if("arm_unsupported", any("unsupported" in run.arms[arm] for arm in (self.arm, *run.controls)))
        add_if("panel_unsupported", any("unsupported" in panel for panel in run.panels.values()))
        starts = [run.json(f"arms/{arm}/start.json") for arm in self.involved()]
        if run.worker == "import":
            report = run.json("import.json")
            sides = [report[side] for side in ("native", "candidate")] if report else []
            add_if("post_hoc", not sides or any(side["protocol_sha256"] != [digest] or side["without_protocol"]
                                                for side in sides))
            add_if("panel_undeclared", any(run.panels[panel]["cases"] > size_of(plan)
                                           for panel, plan in run.plans.items() if panel in run.panels))
        elif "arm_unsupported" not in reasons:
            begun = [any(run.records(arm, panel) for panel in run.run_panels()) for arm in self.involved()]
            add_if("protocol_unproved", any(has_records and not start for has_records, start in zip(begun, starts)))
            add_if("protocol_changed", any(start and start["protocol_sha256"] != digest for start in starts))
        add_if("model_undeclared", not any(
            declared["name"] in ("*", model["name"]) and declared.get("sha256") in (None, model["weights_sha256"])
            for declared in protocol["models"]))
        declared = [candidate["spec"] for candidate in protocol["candidates"]]
        add_if("recipe_undeclared", self.recipe.spec not in declared)
        add_if("objective_undeclared", objective and objective not in protocol["objectives"])
        kinds = {plan["kind"] for plan in run.plans.values()}
        add_if("no_panel", kinds != {"math", "nll", "retrieval"})
        add_if("missing_records", len(run.controls) < len(protocol["controls"]) or self.lacks_beside()
               or self.import_lacks())
        self.resource_reasons(reasons)
        add_if("missing_files", any(self.absent_files(arm) for arm in self.arms))
        add_if("engagement_unproved", not self.is_engaged())
        for panel in run.run_panels():
            least = protocol["assay_sensitivity"].get(run.plans.get(panel, {}).get("kind"))
            for control in run.controls if least is not None else ():
                pairs = run.pairs(control, self.arm, panel)
                add_if("control_too_weak", pairs and sum(pair[1] for pair in pairs) / len(pairs) < least)
        add_if("control_noise", objective == "preservation" and self.is_noisy())
        return reasons

    def resource_reasons(self, reasons):
        limits = self.protocol.get("resource_limits") or {}
        for arm in self.arms if limits else ():
            sampled = ((self.resources() or {}).get(arm) or {}).get("sampled")
            if not sampled:
                reasons.add("resources_unknown")
            elif (sampled["peak_bytes"] > (limits.get("peak_device_bytes") or math.inf)
                  or sampled["largest_gap_ms"] > (limits.get("largest_sample_gap_ms") or math.inf)):
                reasons.add("resource_limit")

    def absent_files(self, arm):
        """Files that a run writes before an arm's first record, and that are not there beside its records."""
        run = self.run
        if run.worker == "import" or not any(run.records(arm, panel) for panel in run.run_panels()):
            return []
        wanted = [f"arms/{arm}/engagement.json"]
        if arm == self.arm and ":fixed" in self.recipe.spec and not run.manifest.get("servers"):
            wanted.append("calibration.json")
        return [name for name in wanted if run.json(name) is None]

    def lacks_beside(self):
        """Whether there is no second native arm, cases that were generated plainly lack records, or nothing says how
        answers came about."""
        run = self.run
        if "unsupported" in run.arms[self.arm]:
            return False
        start = run.json(f"arms/{self.arm}/start.json")
        asks = any(plan["kind"] != "nll" for plan in run.plans.values())
        if run.worker in ("cpu", "cuda") and (not run.aa or asks and start and not start.get("answers")):
            return True
        answers = self.answers()
        return answers is not None and answers["regenerated"] < len(self.chosen())

    def is_engaged(self):
        """On servers as the certificate says: docs/servers.md has the rule."""
        if self.run.worker == "http":
            objectives = self.stored["objectives"].values()
            return all(objective.get("reason") != "engagement_unproved" for objective in objectives)
        proofs = {arm: self.run.json(f"arms/{arm}/engagement.json") for arm in self.arms if not self.absent_files(arm)}
        return all(proofs.values()) and (self.arm not in proofs or proofs[self.arm]["differs_from_native"])

    def is_noisy(self):
        run, rule = self.run, self.rules["gross_loss"]
        pairs = run.pairs(run.controls[0], run.aa, "math") if run.aa and "math" in run.run_panels() else []
        lost = lost_and_gained(pairs)[0]
        return lost > 0 and clopper_pearson_upper(
            lost, len(pairs), self.protocol["family_alpha"] / rule["divisor"]) > rule["limit"]

    # Accounts

    @functools.lru_cache(maxsize=None)
    def aa(self):
        run, records, lost, gained, identical = self.run, 0, 0, 0, True
        if not run.aa:
            return None
        for panel in run.run_panels():
            second = {record["case"]: record for record in run.records(run.aa, panel)}
            for first in run.records(run.controls[0], panel):
                other = second.get(first["case"])
                if other:
                    records += 1
                    lost += bool(first.get("correct")) and other.get("correct") is False
                    gained += first.get("correct") is False and bool(other.get("correct"))
                    identical &= all(first.get(field) == other.get(field)
                                     for field in ("output_ids", "output", "finish", "error", "nll_sum"))
        return {"lost": lost, "gained": gained, "records": records, "identical_bits": identical}

    def mode(self):
        return (self.run.json(f"arms/{self.arm}/start.json") or {}).get("answers")

    @functools.lru_cache(maxsize=None)
    def chosen(self):
        """(panel, case) of what a verified arm generates plainly as well."""
        run = self.run
        cases = [(panel, case) for panel, plan in run.plans.items() if plan["kind"] != "nll"
                 and panel in run.run_panels() for case in run.cases(panel)] if self.mode() == "verified" else []
        shuffle(cases, 4 << 56, self.protocol["seed"])
        return cases[:32]

    @functools.lru_cache(maxsize=None)
    def answers(self):
        if self.mode() is None:
            return None
        regenerated, mismatches, chosen = 0, 0, set(self.chosen())
        for panel in self.run.run_panels():
            records = {record["case"]: record for record in self.run.records(self.arm, panel)}
            for again in self.run.records(self.arm, panel, ".regenerated"):
                regenerated += again["case"] in records
                mismatches += (panel, again["case"]) not in chosen or records.get(again["case"], again) != again
        return {"mode": self.mode(), "regenerated": regenerated, "mismatches": mismatches}

    def engagement(self):
        stored = self.run.json(f"arms/{self.arm}/engagement.json")
        if self.run.worker == "http" or stored is None:
            return None
        numbered = {layer.number: layer for layer in self.recipe.layers}
        layers = [{"layer": layer["layer"], **{component: {**layer[component], **self.recipe.counters(
            component, stored["probe_tokens"], [numbered[layer["layer"]]], self.run.absmax, layer[component])}
            for component in "kv"}} for layer in stored["layers"]]
        ends = [(component, end) for component in "kv" for end in ("scale_min", "scale_max")]
        scales = [layer[component][end] for layer in layers for component, end in ends
                  if layer[component].get(end) is not None]
        return {**stored, "recipe": self.recipe.spec, "layers": layers, "totals": self.totals(),
                "unit_scales": bool(scales) and all(scale == 1 for scale in scales),
                "differs_from_native": self.recipe.forms != {"k": "native", "v": "native"} or "q=" in self.recipe.spec}

    def totals(self):
        totals = {}
        for component in "kv":
            stored = [record["kv"][component] for panel in self.run.run_panels()
                      for record in self.run.records(self.arm, panel) if "kv" in record]
            counters = ("bytes", "elements", "saturated", "changed")
            totals[component] = {counter: sum(each[counter] for each in stored) for counter in counters}
            for end, of in (("scale_min", min), ("scale_max", max)):
                scales = [each[end] for each in stored if each.get(end) is not None]
                totals[component][end] = Scale(of(scales)) if scales else None
        return totals

    def resources(self):
        found = {arm: self.run.json(f"arms/{arm}/resources.json") for arm in self.arms}
        return Keyed((arm, summed_up(file["parts"])) for arm, file in found.items() if file) or None

    def counts(self, arm):
        records = [(panel, record) for panel in self.run.run_panels() for record in self.run.records(arm, panel)]
        answered = [(panel, record) for panel, record in records if "error" not in record]
        unparsed = sum(panel == "math" and record.get("answer") is None
                       and (record.get("finish") in ("stop", "length") or bool(record.get("secondary")))
                       for panel, record in answered)
        return {"truncated": sum(record.get("finish") == "length" for _, record in records), "unparsed": unparsed,
                "errors": len(records) - len(answered),
                "empty": sum(record.get("output") == "" for _, record in answered) or None}

    def evidence(self):
        """Digests of the files that the certificate rests on, by path."""
        names = ["run.json", "import.json"] + ["calibration.json"] * (":fixed" in self.recipe.spec)
        names += [panel["file"]["path"] for panel in self.run.panels.values() if "file" in panel]
        for arm in self.arms:
            names += [f"arms/{arm}/{name}.json" for name in ("start", "engagement", "resources")]
            names += [f"arms/{arm}/{panel}{kind}.jsonl" for panel in self.run.panels for kind in ("", ".regenerated")]
        files = [name for name in names if os.path.exists(self.run.file(name))]
        return Keyed((name, sha256(read_bytes(self.run.file(name)))) for name in sorted(files))


def lost_and_gained(pairs):
    return sum(a and not b for _, a, b in pairs), sum(b and not a for _, a, b in pairs)


def proportion_figures(name, pairs, alpha):
    n, (lost, gained) = len(pairs), lost_and_gained(pairs)
    control = sum(pair[1] for pair in pairs)
    if name == "net_change":
        estimate, bound = (gained - lost) / n, tango_lower(lost, gained, n, alpha)
    else:
        estimate, bound = lost / n, clopper_pearson_upper(lost, n, alpha)
    return {"control_correct": control, "candidate_correct": sum(pair[2] for pair in pairs), "lost": lost,
            "gained": gained, "lost_of_control_correct": lost / control if control else None, "estimate": estimate,
            "bound": Close(bound)}, bound


def outlook_of(rule):
    room = (rule["estimate"] - rule["limit"]) * (1 if rule["rule"] == "net_change" else -1)
    outlook = {**{field: rule[field] for field in ("rule", "panel", "control", "pairs")},
               "beyond_limit": room < 0, "approximate": rule["rule"] == "nll"}
    if rule["rule"] == "nll":
        for field, power in (("needed_80", 0.8), ("needed_95", 0.95)):
            z = z_of(rule["alpha"]) + z_of(1 - power)
            needed = max(2, math.ceil((z * rule["document_sd"] / room)**2)) if room > 0 else math.inf
            outlook[field] = needed if needed <= 100_000 else None
    return outlook


def summed_up(parts):
    most = lambda field, of: max(part[of][field] for part in parts)
    sizes, samples = [part.get("total_bytes") for part in parts], [part.get("sampled") for part in parts]
    sampled = {"scope": samples[0]["scope"], "peak_bytes": most("peak_bytes", "sampled"),
               "samples": sum(sample["samples"] for sample in samples),
               "largest_gap_ms": most("largest_gap_ms", "sampled")} if all(samples) else None
    return {"devices": list(dict.fromkeys(part["device"] for part in parts)),
            "total_bytes": None if None in sizes else min(sizes),
            "allocations": {field: most(field, "allocations") for field in parts[0]["allocations"]},
            "sampled": sampled, "parts": len(parts)}


# --- Comparing -------------------------------------------------------------------------------------------------------

class Close(float):
    """A figure that two libraries give to about 1e-12."""


class Scale(float):
    """An FP32 number, however its decimal is written."""


class Keyed(dict):
    """An object with names as keys: none may be there that was not recomputed."""


def agrees(stored, recomputed):
    if isinstance(recomputed, Close) and isinstance(stored, float):
        return math.isclose(stored, recomputed, rel_tol=1e-9, abs_tol=1e-14)
    if isinstance(recomputed, Scale) and isinstance(stored, (int, float)):
        return f32(stored) == f32(recomputed)
    return stored == recomputed and isinstance(stored, bool) == isinstance(recomputed, bool)


class Comparison:
    def __init__(self):
        self.figures, self.differences = 0, []

    def compare(self, field, stored, recomputed, where="certificate"):
        if isinstance(recomputed, dict) and isinstance(stored, dict):
            extra = [key for key in stored if key not in recomputed] if isinstance(recomputed, Keyed) else []
            for key in [*recomputed, *extra]:
                self.compare(f"{field}.{key}" if field else key, stored.get(key), recomputed.get(key), where)
        elif isinstance(recomputed, list) and isinstance(stored, list):
            if len(stored) != len(recomputed):
                self.compare(f"{field}, entries", len(stored), len(recomputed), where)
            for i, pair in enumerate(zip(stored, recomputed)):
                self.compare(f"{field}[{i}]", *pair, where)
        else:
            self.figures += 1
            if not agrees(stored, recomputed):
                values = (json.dumps(value, ensure_ascii=False) for value in (stored, recomputed))
                self.differences.append("{}: {} has {}, recomputed {}".format(field, where, *values))


def compare_manifest(run, comparison):
    manifest, tokenizer = run.manifest, run.manifest["model"]["tokenizer_sha256"]
    digest = sha256(canonical_json(run.protocol).encode())
    comparison.compare("run.json protocol_sha256", manifest["protocol_sha256"], digest, "manifest")
    calibration, digests = run.json("calibration.json"), {}
    if calibration:
        weights = manifest["model"]["weights_sha256"]
        comparison.compare("calibration.json weights_sha256", calibration["weights_sha256"], weights, "file")
        digests["calibration"] = calibration["documents_sha256"]
    for panel in run.run_panels():
        file = run.panels[panel]["file"]["path"]
        lines, digests[panel] = read_lines(run.file(file)), sha256(read_bytes(run.file(file)))
        wanted = {"file": {"sha256": digests[panel]}, "cases": len(lines) - 1}
        comparison.compare(f"run.json panels.{panel}", run.panels[panel], wanted, "manifest")
        parser = PARSERS.get(run.plans.get(panel, {}).get("kind")) if run.worker != "import" else "imported/1"
        header = {"panel": panel, "tokenizer_sha256": tokenizer, "parser": parser, "cases": len(lines) - 1}
        comparison.compare(f"{file} header", lines[0][1], header, "file")
    for frozen in run.protocol.get("frozen_panels", []):
        if frozen["tokenizer_sha256"] == tokenizer and frozen["panel"] in digests:
            field = f"run.json protocol.frozen_panels.{frozen['panel']}"
            comparison.compare(field, frozen["sha256"], digests[frozen["panel"]], "manifest")


def compare_certificate(run, arm, stored, quick):
    comparison = Comparison()
    with schema_of(run.file(f"certificates/{arm}.json")):
        certificate = Certificate(run, arm, stored, quick)
        comparison.compare("", stored, certificate.expected())
        listed = [(file["path"], file["sha256"]) for file in stored.get("evidence", [])]
        comparison.compare("evidence", Keyed(listed), certificate.evidence())
        comparison.compare("evidence, sorted by path", listed == sorted(set(listed)), True)
        compare_manifest(run, comparison)
        for name in certificate.arms:
            compare_records(run, name, comparison)
    return comparison


@contextlib.contextmanager
def schema_of(path):
    """What is missing or of another type than docs/schemas say."""
    try:
        yield
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path}: it, or a file that it rests on, is not as its schema says: {error!r}") from error


def progress(message):
    print(message, file=sys.stderr, flush=True)


def certificates_of(run, recipes):
    folder = run.file("certificates")
    try:
        names = recipes or sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json"))
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror}") from error
    if not names:
        raise Unreadable(f"{folder}: no certificate")
    for name in names:
        path = os.path.join(folder, name + ".json")
        if name not in run.arms:
            raise Unreadable(f"{path}: run.json has no arm {name}")
        yield name, read_json(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("recipes", metavar="RECIPE", nargs="*", help="names of certificates; all by default")
    parser.add_argument("--quick", action="store_true", help="leave the bootstrap out")
    arguments = parser.parse_args()
    differs = False
    try:
        with schema_of(os.path.join(arguments.run, "run.json")):
            run = Run(arguments.run)
        for name, stored in certificates_of(run, arguments.recipes):
            comparison = compare_certificate(run, name, stored, arguments.quick)
            quick = " (without the bootstrap)" if arguments.quick else ""
            count = len(comparison.differences)
            result = f"{count} differ" if count > 1 else "1 differs" if count else "none differs"
            print(f"{name}: {comparison.figures} figures recomputed{quick}, {result}")
            for difference in comparison.differences:
                print(f"  {difference}")
            differs |= count > 0
    except Unreadable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 5 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
