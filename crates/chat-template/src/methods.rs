//! Methods of dicts, lists and strings.

mod string;

use crate::attribute::Attribute;
use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::access::as_index;
use crate::eval::expression::{Given, check_hashable};
use crate::text::Origin;
use crate::value::{Val, View};

impl<'a> Eval<'a> {
    pub(crate) fn method(&mut self, this: Val<'a>, method: Attribute, given: Given<'a>) -> Result<Val<'a>> {
        match this {
            Val::Dict(_) => self.dict_method(this, method, given),
            Val::Str(_) | Val::Markup(_) => self.string_method(this, method, given),
            Val::List(list) | Val::Tuple(list) => self.list_method(this, list.items, method, given),
            _ => self.loop_method(this, method, given),
        }
    }

    fn dict_method(&mut self, this: Val<'a>, method: Attribute, given: Given<'a>) -> Result<Val<'a>> {
        let Val::Dict(dict) = this else {
            return Err(Error::runtime("expected a dict"));
        };
        if method == Attribute::Get {
            let [key, default] = given.bind_positional("get()")?;
            let key = key.ok_or_else(|| Error::runtime("get() needs a key"))?;
            check_hashable(&key)?;
            let found = self.dict_get(this, key)?;
            return Ok(found.or(default).unwrap_or(Val::None(Origin::TEMPLATE)));
        }
        let [] = given.bind_positional("the method of a dict")?;
        Ok(match method {
            Attribute::Items => Val::View(View::Items, dict),
            Attribute::Keys => Val::View(View::Keys, dict),
            Attribute::Values => Val::View(View::Values, dict),
            _ => this,
        })
    }

    fn list_method(
        &mut self,
        this: Val<'a>,
        items: &'a [Val<'a>],
        method: Attribute,
        given: Given<'a>,
    ) -> Result<Val<'a>> {
        match method {
            Attribute::Copy => {
                let [] = given.bind_positional("copy()")?;
                Ok(this)
            }
            Attribute::Count => {
                let [item] = given.bind_positional("count()")?;
                let item = item.ok_or_else(|| Error::runtime("count() needs an item"))?;
                let mut count = 0;
                for other in items {
                    count += i64::from(self.equal(other, &item)?);
                }
                Ok(Val::Int(count, Origin::TEMPLATE))
            }
            _ => {
                let [item, start, stop] = given.bind_positional("index()")?;
                let item = item.ok_or_else(|| Error::runtime("index() needs an item"))?;
                let bound = |value: Option<Val<'a>>, default: usize| -> Result<usize> {
                    let Some(value) = value else { return Ok(default) };
                    let index = as_index(&value, "index()")?;
                    let index =
                        if index < 0 { index.saturating_add(items.len() as i64).max(0) } else { index };
                    Ok(usize::try_from(index).unwrap_or(usize::MAX))
                };
                let (start, stop) = (bound(start, 0)?, bound(stop, items.len())?);
                for (at, other) in items.iter().enumerate().take(stop).skip(start) {
                    if self.equal(other, &item)? {
                        return Ok(Val::Int(at as i64, Origin::TEMPLATE));
                    }
                }
                Err(Error::runtime("the item is not in the list"))
            }
        }
    }
}
