//! Word lists of the demo texts.

/// Given names of the people in word problems.
pub(super) const PEOPLE: [&str; 24] = [
    "Ada", "Ben", "Cara", "Dan", "Ella", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kira", "Leo",
    "Mona", "Nils", "Olga", "Paul", "Rosa", "Sam", "Tara", "Uma", "Vera", "Will", "Yara", "Zoe",
];

/// Things that can be counted.
pub(super) const THINGS: [&str; 24] = [
    "apples", "books", "coins", "cards", "stamps", "shells", "marbles", "pens", "stickers",
    "buttons", "beads", "plums", "eggs", "candles", "ribbons", "nails", "bricks", "tiles", "seeds",
    "roses", "cups", "plates", "keys", "toys",
];

/// Keys of needles; each is one frequent word.
pub(super) const KEYS: [&str; 159] = [
    "falcon", "river", "anchor", "basil", "candle", "desert", "ember", "forest", "garden",
    "harbor", "island", "jungle", "kettle", "lantern", "meadow", "needle", "orchid", "pepper",
    "quartz", "rabbit", "saddle", "temple", "umbrella", "velvet", "walnut", "yarrow", "zebra",
    "acorn", "badger", "cactus", "dolphin", "eagle", "feather", "ginger", "hammer", "ivory",
    "jacket", "kitten", "ladder", "magnet", "napkin", "olive", "parrot", "quiver", "ribbon",
    "salmon", "thistle", "urchin", "violin", "willow", "arrow", "beacon", "copper", "dagger",
    "engine", "fiddle", "goblet", "heron", "indigo", "jasmine", "kernel", "lemon", "marble",
    "nutmeg", "otter", "pebble", "quince", "raven", "silver", "tiger", "tulip", "valley", "wagon",
    "amber", "bridge", "canyon", "dragon", "elbow", "fossil", "glacier", "hazel", "iron", "jewel",
    "knight", "lotus", "mango", "nickel", "oyster", "pigeon", "rocket", "spider", "timber",
    "turtle", "vessel", "window", "apron", "bottle", "carpet", "drum", "fennel", "granite",
    "honey", "igloo", "juniper", "kelp", "linen", "mirror", "nectar", "onion", "pillow", "radish",
    "shovel", "trumpet", "vinegar", "whistle", "almond", "blossom", "cobalt", "daisy", "falafel",
    "gravel", "hornet", "inkwell", "jaguar", "koala", "lizard", "muffin", "noodle", "oregano",
    "panther", "raisin", "sparrow", "teapot", "vulture", "walrus", "barley", "cricket", "donkey",
    "emerald", "flute", "guitar", "hedgehog", "lobster", "mitten", "oak", "peach", "pumpkin",
    "ruby", "sapphire", "toffee", "turnip", "violet", "wolf", "cedar", "clover", "coral", "maple",
    "moss", "pearl",
];

/// First syllables of invented places.
pub(super) const ONSETS: [&str; 20] = [
    "Vel", "Tar", "Mor", "Kel", "Bran", "Sil", "Dor", "Fen", "Gal", "Hol", "Lun", "Mar", "Nor",
    "Pel", "Ros", "San", "Tol", "Ul", "Wes", "Yar",
];

/// Last syllables of invented places.
pub(super) const CODAS: [&str; 16] = [
    "mora", "dale", "wick", "ford", "stead", "ham", "burg", "mere", "ton", "holm", "grad", "by",
    "mouth", "field", "haven", "brook",
];

/// Kinds of settlement.
pub(super) const KINDS: [&str; 6] = [
    "town",
    "village",
    "city",
    "harbour",
    "market town",
    "fortress",
];

/// Compass directions.
pub(super) const DIRECTIONS: [&str; 4] = ["north", "south", "east", "west"];

/// Trades.
pub(super) const TRADES: [&str; 12] = [
    "weaving",
    "fishing",
    "mining",
    "farming",
    "pottery",
    "brewing",
    "printing",
    "carpentry",
    "glass making",
    "ship building",
    "wine making",
    "salt trade",
];

/// Buildings.
pub(super) const BUILDINGS: [&str; 10] = [
    "a stone bridge",
    "a round tower",
    "a town hall",
    "a water mill",
    "an old library",
    "a covered market",
    "a white church",
    "a small theatre",
    "a long wall",
    "a clock tower",
];

/// Events.
pub(super) const EVENTS: [&str; 8] = [
    "a great fire",
    "a flood",
    "a long siege",
    "a royal visit",
    "a bad harvest",
    "a new charter",
    "a great storm",
    "a famous trial",
];
