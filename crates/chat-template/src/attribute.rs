//! The attributes of Python's types that a template can reach with a dot.

/// A name behind a dot, as far as Python's types have such an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// No type has it.
    Other,
    // methods of dicts
    Get,
    Items,
    Keys,
    Values,
    // methods of dicts and lists
    Copy,
    /// Methods that change a dict or a list: the sandbox makes them undefined.
    Clear,
    Pop,
    PopItem,
    SetDefault,
    Update,
    Append,
    Extend,
    Insert,
    Remove,
    Reverse,
    Sort,
    FromKeys,
    // methods of lists, tuples and strings
    Count,
    Index,
    // methods of strings
    Capitalize,
    EndsWith,
    Find,
    Format,
    IsAlnum,
    IsAlpha,
    IsAscii,
    IsDigit,
    IsLower,
    IsSpace,
    IsUpper,
    Join,
    Lower,
    LStrip,
    Partition,
    RemovePrefix,
    RemoveSuffix,
    Replace,
    RFind,
    RIndex,
    RPartition,
    RSplit,
    RStrip,
    Split,
    SplitLines,
    StartsWith,
    Strip,
    Title,
    Upper,
    // methods of `loop`
    Cycle,
    Changed,
    /// Strings have it, and this engine does not.
    OtherStr,
    /// Strings that `|safe` marked have it, and this engine does not.
    OtherMarkup,
    /// Numbers have it, and this engine does not.
    OtherNumber,
}

/// Attributes of strings that are not implemented.
const OTHER_STR: [&str; 16] = [
    "casefold",
    "center",
    "encode",
    "expandtabs",
    "format_map",
    "isdecimal",
    "isidentifier",
    "isnumeric",
    "isprintable",
    "istitle",
    "ljust",
    "maketrans",
    "rjust",
    "swapcase",
    "translate",
    "zfill",
];

/// Attributes of numbers, none of which is implemented.
const OTHER_NUMBER: [&str; 13] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "fromhex",
    "hex",
    "imag",
    "is_integer",
    "numerator",
    "real",
    "to_bytes",
];

impl Attribute {
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "get" => Self::Get,
            "items" => Self::Items,
            "keys" => Self::Keys,
            "values" => Self::Values,
            "copy" => Self::Copy,
            "clear" => Self::Clear,
            "pop" => Self::Pop,
            "popitem" => Self::PopItem,
            "setdefault" => Self::SetDefault,
            "update" => Self::Update,
            "append" => Self::Append,
            "extend" => Self::Extend,
            "insert" => Self::Insert,
            "remove" => Self::Remove,
            "reverse" => Self::Reverse,
            "sort" => Self::Sort,
            "fromkeys" => Self::FromKeys,
            "count" => Self::Count,
            "index" => Self::Index,
            "capitalize" => Self::Capitalize,
            "endswith" => Self::EndsWith,
            "find" => Self::Find,
            "format" => Self::Format,
            "isalnum" => Self::IsAlnum,
            "isalpha" => Self::IsAlpha,
            "isascii" => Self::IsAscii,
            "isdigit" => Self::IsDigit,
            "islower" => Self::IsLower,
            "isspace" => Self::IsSpace,
            "isupper" => Self::IsUpper,
            "join" => Self::Join,
            "lower" => Self::Lower,
            "lstrip" => Self::LStrip,
            "partition" => Self::Partition,
            "removeprefix" => Self::RemovePrefix,
            "removesuffix" => Self::RemoveSuffix,
            "replace" => Self::Replace,
            "rfind" => Self::RFind,
            "rindex" => Self::RIndex,
            "rpartition" => Self::RPartition,
            "rsplit" => Self::RSplit,
            "rstrip" => Self::RStrip,
            "split" => Self::Split,
            "splitlines" => Self::SplitLines,
            "startswith" => Self::StartsWith,
            "strip" => Self::Strip,
            "title" => Self::Title,
            "upper" => Self::Upper,
            "cycle" => Self::Cycle,
            "changed" => Self::Changed,
            "escape" | "unescape" | "striptags" => Self::OtherMarkup,
            name if OTHER_STR.contains(&name) => Self::OtherStr,
            name if OTHER_NUMBER.contains(&name) => Self::OtherNumber,
            _ => Self::Other,
        }
    }

    /// Whether a call of this method is surely meant for a type that this engine does not give it.
    pub(crate) fn is_unsupported_method(name: &str) -> bool {
        matches!(Self::named(name), Self::OtherStr | Self::OtherNumber | Self::FromKeys)
    }

    pub(crate) fn is_dict_method(self) -> bool {
        matches!(self, Self::Get | Self::Items | Self::Keys | Self::Values | Self::Copy)
    }

    /// Methods that change a dict, which the sandbox hides.
    pub(crate) fn changes_dict(self) -> bool {
        matches!(self, Self::Clear | Self::Pop | Self::PopItem | Self::SetDefault | Self::Update)
    }

    pub(crate) fn is_list_method(self) -> bool {
        matches!(self, Self::Copy | Self::Count | Self::Index)
    }

    /// Methods that change a list, which the sandbox hides.
    pub(crate) fn changes_list(self) -> bool {
        matches!(
            self,
            Self::Append
                | Self::Clear
                | Self::Pop
                | Self::Reverse
                | Self::Insert
                | Self::Sort
                | Self::Extend
                | Self::Remove
        )
    }

    pub(crate) fn is_str_method(self) -> bool {
        self as u8 >= Self::Count as u8 && (self as u8) < Self::Cycle as u8
    }
}
