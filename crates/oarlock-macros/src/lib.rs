//! Generates the blocking API of `oarlock-core` from its async one. Not for use elsewhere.
//!
//! `#[blocking]` on an `impl` block generates a second one, for the type of the same name in `crate::blocking`, with a
//! method for each public method of the first: the same name and arguments, without `async`. A method can be marked:
//!
//! - `#[blocking(within)]`: its twin has a bounded form, too, `name_within(…, patience)`.
//! - `#[blocking(by_hand)]`: its twin is written by hand, in an `impl` block with `#[by_hand]`. Without it, the crate
//!   does not compile.
//! - `#[blocking(none)]`: it has no twin, because code that blocks has no use for it.
//!
//! So the blocking API can lack a method only where the async one says so.

use proc_macro::TokenStream;
use proc_macro2::{Ident, TokenStream as Tokens};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, GenericArgument, ImplItem, ImplItemFn, Item, ItemImpl, ItemType, Lit, Meta,
    Pat, PathArguments, PathSegment, ReceiverKind, Result, ReturnType, Token, Type, TypeParamBound, TypePath,
    TypeReference, Visibility, parse_quote,
};

/// Declares the blocking types, as aliases `Name = Blocking<path>` or `Name = BlockingGuard<path, path of its state>`,
/// and how a value of the async API becomes one. It is called once, in `crate::blocking`: the macro `generate` that it
/// leaves there tells every `#[blocking]` these names.
#[proc_macro]
pub fn twins(input: TokenStream) -> TokenStream {
    let file = syn::parse_macro_input!(input as syn::File);
    declared(&file.items).unwrap_or_else(Error::into_compile_error).into()
}

fn declared(items: &[Item]) -> Result<Tokens> {
    let mut names = Vec::new();
    let mut all = Tokens::new();
    for item in items {
        let Item::Type(alias) = item else { return Err(Error::new_spanned(item, "expected a type alias")) };
        names.push(&alias.ident);
        all.extend(declaration(alias)?);
    }
    Ok(quote! {
        #all

        macro_rules! generate {
            ($($item:tt)*) => { oarlock_macros::generate! { [#(#names)*] $($item)* } };
        }
        pub(crate) use generate;
    })
}

fn declaration(alias: &ItemType) -> Result<Tokens> {
    let name = &alias.ident;
    let (inner, held) = match arguments_of(last_of(&alias.ty)?).as_slice() {
        [inner] => (inner.clone(), None),
        [inner, held] => (inner.clone(), Some(quote! { held: <#held>::clone(&self).twin(runtime), })),
        _ => return Err(Error::new_spanned(&alias.ty, "expected the async type, and for a guard that of its state")),
    };
    let of = &last_of(&alias.ty)?.ident;
    Ok(quote! {
        #alias

        impl Twin for #inner {
            type Blocking = #name;

            fn twin(self, runtime: &Option<Runtime>) -> #name {
                #of { #held inner: self, runtime: runtime.clone() }
            }
        }
    })
}

/// Generates the blocking twin of an `impl` block; see the [crate](self).
#[proc_macro_attribute]
pub fn blocking(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut item = syn::parse_macro_input!(item as ItemImpl);
    let mut marked = item.clone();
    for (kept, marked) in item.items.iter_mut().zip(&mut marked.items) {
        if let (ImplItem::Fn(kept), ImplItem::Fn(marked)) = (kept, marked) {
            kept.attrs.retain(|attr| !is_mark(attr));
            marked.block = parse_quote!({});
        }
    }
    quote! { #item crate::blocking::generate! { #marked } }.into()
}

/// The second step of `#[blocking]`, which knows the names of the blocking types; see [`macro@twins`].
#[proc_macro]
pub fn generate(input: TokenStream) -> TokenStream {
    let Generate { twins, of } = syn::parse_macro_input!(input as Generate);
    twins.of(of).unwrap_or_else(Error::into_compile_error).into()
}

/// `[Name Name …] impl …`
struct Generate {
    twins: Twins,
    of: ItemImpl,
}

impl Parse for Generate {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let names;
        syn::bracketed!(names in input);
        let mut twins = Twins(Vec::new());
        while !names.is_empty() {
            twins.0.push(names.parse()?);
        }
        Ok(Self { twins, of: input.parse()? })
    }
}

/// Types that have the same name in the async API and in `crate::blocking`: one in a result becomes the other.
struct Twins(Vec<Ident>);

impl Twins {
    fn has(&self, name: &Ident) -> bool {
        self.0.contains(name)
    }

    /// The blocking twin of an `impl` block.
    fn of(&self, mut item: ItemImpl) -> Result<Tokens> {
        let of = last_of(&item.self_ty)?.clone();
        let twin = quote! { crate::blocking::#of };
        let (mut methods, mut proofs) = (Vec::new(), Vec::new());
        for member in &mut item.items {
            let ImplItem::Fn(method) = member else { continue };
            let mark = take_mark(&mut method.attrs)?;
            if !matches!(method.vis, Visibility::Public(_)) {
                continue;
            }
            match mark {
                Mark::None => {}
                Mark::ByHand => proofs.push(proof_of(&method.sig.ident)),
                Mark::Within => {
                    methods.push(self.method(&of.ident, method, false)?);
                    methods.push(self.method(&of.ident, method, true)?);
                }
                Mark::Generated => methods.push(self.method(&of.ident, method, false)?),
            }
        }
        let (generics, _, bounds) = item.generics.split_for_impl();
        Ok(quote! {
            impl #generics #twin #bounds {
                #(#methods)*
            }
            #(const _: () = <#twin>::#proofs;)*
        })
    }

    /// The twin of a method, or its bounded form.
    fn method(&self, of: &Ident, method: &ImplItemFn, within: bool) -> Result<Tokens> {
        let name = &method.sig.ident;
        let by_hand = |at: &dyn quote::ToTokens, what| {
            Error::new_spanned(at.to_token_stream(), format!("{what} is `#[blocking(by_hand)]`"))
        };
        let Some(receiver) = method.sig.receiver() else { return Err(by_hand(name, "a function without self")) };
        if !matches!(receiver.kind, ReceiverKind::Value | ReceiverKind::Reference(..)) {
            return Err(by_hand(receiver, "a method of another self"));
        }
        let mut arguments = Vec::new();
        for input in &method.sig.inputs {
            let FnArg::Typed(argument) = input else { continue };
            let Pat::Ident(pattern) = &*argument.pat else { return Err(by_hand(argument, "a method with patterns")) };
            arguments.push(pattern.ident.clone());
        }
        let result = Outcome::of(method);
        // That of the signature: another one would not be visible here.
        let this = receiver.self_token;
        let (output, body) = result.twin(self, this, &quote! { #this.inner.#name(#(#arguments),*) }, within);
        let mut signature = method.sig.clone();
        signature.asyncness = None;
        signature.output = parse_quote!(-> #output);
        if let Some(FnArg::Receiver(receiver)) = signature.inputs.first_mut() {
            receiver.mutability = result.is_self().then(Default::default);
        }
        let docs = if within {
            signature.ident = format_ident!("{name}_within");
            signature.inputs.push(parse_quote!(patience: ::std::time::Duration));
            let late = match only_argument(&result.value, "Option") {
                Some(_) => "[`Within::TimedOut`](crate::blocking::Within::TimedOut)",
                None => "`None`",
            };
            let text = format!("Waits as [`{name}`](Self::{name}) does, for at most `patience`; {late} after that.");
            let errors = format!("As [`{name}`](Self::{name}).");
            quote! { #[doc = #text] #[doc = ""] #[doc = "# Errors"] #[doc = #errors] }
        } else {
            docs(of, method, result.waits)
        };
        let kept = method.attrs.iter().filter(|attr| attr.path().is_ident("must_use") || attr.path().is_ident("cfg"));
        // The types of guards are `must_use` themselves.
        let must_use = (result.is_idle(self) && !method.attrs.iter().any(|attr| attr.path().is_ident("must_use")))
            .then(|| quote! { #[must_use = "this call alone does nothing"] });
        Ok(quote! {
            #docs
            #must_use
            #(#kept)*
            pub #signature {
                #body
            }
        })
    }
}

/// Lets `#[blocking(by_hand)]` find the methods of this `impl` block; see the [crate](self).
#[proc_macro_attribute]
pub fn by_hand(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut item = syn::parse_macro_input!(item as ItemImpl);
    let found: Vec<ImplItem> = public_methods(&item)
        .map(|method| {
            let proof = proof_of(&method.sig.ident);
            parse_quote! { #[allow(dead_code)] pub(crate) const #proof: () = (); }
        })
        .collect();
    item.items.extend(found);
    quote! { #item }.into()
}

fn public_methods(item: &ItemImpl) -> impl Iterator<Item = &ImplItemFn> {
    item.items.iter().filter_map(|member| match member {
        ImplItem::Fn(method) if matches!(method.vis, Visibility::Public(_)) => Some(method),
        _ => None,
    })
}

/// The constant that a method written by hand has beside it: unlike a generic method, it can be named without a call.
fn proof_of(method: &Ident) -> Ident {
    format_ident!("{}_BY_HAND", method.to_string().to_uppercase(), span = method.span())
}

/// The last segment of a path, also behind the invisible brackets that a macro leaves around a type.
fn last_of(of: &Type) -> Result<&PathSegment> {
    match of {
        Type::Group(group) => last_of(&group.elem),
        Type::Path(TypePath { path, .. }) => {
            path.segments.last().ok_or_else(|| Error::new_spanned(path, "a name is missing"))
        }
        _ => Err(Error::new_spanned(of, "only a named type has a blocking twin")),
    }
}

fn arguments_of(segment: &PathSegment) -> Vec<Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return Vec::new() };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(argument) => Some(argument.clone()),
        _ => None,
    });
    types.collect()
}

/// Where the twin of a method comes from.
enum Mark {
    Generated,
    Within,
    ByHand,
    None,
}

fn is_mark(attr: &Attribute) -> bool {
    attr.path().is_ident("blocking")
}

/// Takes the mark of a method off.
fn take_mark(attrs: &mut Vec<Attribute>) -> Result<Mark> {
    let Some(at) = attrs.iter().position(is_mark) else { return Ok(Mark::Generated) };
    let mark: Ident = attrs.remove(at).parse_args()?;
    match mark.to_string().as_str() {
        "within" => Ok(Mark::Within),
        "by_hand" => Ok(Mark::ByHand),
        "none" => Ok(Mark::None),
        _ => Err(Error::new_spanned(mark, "expected `within`, `by_hand` or `none`")),
    }
}

/// The documentation of a method, without what only async code needs: its examples, and what a dropped future does.
fn docs(of: &Ident, method: &ImplItemFn, waits: bool) -> Tokens {
    let mut lines: Vec<String> = Vec::new();
    let (mut in_code, mut skips) = (false, false);
    for line in method.attrs.iter().filter_map(doc_line) {
        let text = line.trim();
        if text.starts_with("```") {
            in_code = !in_code;
        } else if text.starts_with("# ") && !in_code {
            skips = matches!(text, "# Examples" | "# Cancel safety");
        }
        if !skips {
            lines.push(line.replace("Resolves", "Returns").replace("resolves", "returns"));
        }
    }
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    if waits {
        let name = &method.sig.ident;
        let see = format!(" Blocks the calling thread. In async code: [`{of}::{name}`].");
        let first = lines.iter().position(|line| line.trim().is_empty()).unwrap_or(lines.len());
        lines.splice(first..first, [String::new(), see]);
        if !lines.iter().any(|line| line.trim() == "# Errors") {
            lines.extend([String::new(), " # Errors".to_owned()]);
        }
        lines.extend([
            String::new(),
            " [`ErrorKind::Config`](crate::ErrorKind::Config) on the client's background thread.".to_owned(),
        ]);
    }
    quote! { #(#[doc = #lines])* }
}

fn doc_line(attr: &Attribute) -> Option<String> {
    match &attr.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    }
}

/// What a method returns.
struct Outcome {
    /// It has to be waited for.
    waits: bool,
    /// The `T` of a `Result<T>`, or all of it.
    value: Type,
    is_result: bool,
}

impl Outcome {
    fn of(method: &ImplItemFn) -> Self {
        let declared: Type = match &method.sig.output {
            ReturnType::Default => parse_quote!(()),
            ReturnType::Type(_, declared) => Type::clone(declared),
        };
        let (waits, declared) = match future_of(&declared) {
            Some(output) => (true, output),
            None => (method.sig.asyncness.is_some(), declared),
        };
        match only_argument(&declared, "Result") {
            Some(value) => Self { waits, value, is_result: true },
            None => Self { waits, value: declared, is_result: false },
        }
    }

    fn is_self(&self) -> bool {
        matches!(&self.value, Type::Path(path) if path.path.is_ident("Self"))
    }

    /// It only makes a value, such as a lock that is not taken yet.
    fn is_idle(&self, twins: &Twins) -> bool {
        let is_twin = |last: &PathSegment| twins.has(&last.ident) && !last.ident.to_string().ends_with("Guard");
        !self.waits && !self.is_result && (self.is_self() || last_of(&self.value).is_ok_and(is_twin))
    }

    /// What the twin returns, and its body.
    fn twin(&self, twins: &Twins, this: Token![self], call: &Tokens, within: bool) -> (Tokens, Tokens) {
        if self.is_self() {
            return (quote! { Self }, quote! { #this.inner = #call; #this });
        }
        let (mut value, mut wrap) = (self.value.clone(), Wrap { twins, found: false });
        wrap.visit_type_mut(&mut value);
        let twin = wrap.found.then(|| quote! { .map(|done| crate::blocking::Twin::twin(done, &#this.runtime)) });
        if !self.waits {
            return match (self.is_result, wrap.found) {
                (true, _) => (quote! { crate::Result<#value> }, quote! { #call #twin }),
                (false, true) => (quote! { #value }, quote! { crate::blocking::Twin::twin(#call, &#this.runtime) }),
                (false, false) => (quote! { #value }, call.clone()),
            };
        }
        let work = if self.is_result {
            call.clone()
        } else {
            quote! { async { crate::Result::Ok(#call.await) } }
        };
        if !within {
            return (
                quote! { crate::Result<#value> },
                quote! { crate::blocking::block_on(&#this.runtime, #work)#twin },
            );
        }
        let done = quote! { crate::blocking::within(&#this.runtime, patience, #work)#twin };
        match only_argument(&value, "Option") {
            Some(value) => (
                quote! { crate::Result<crate::blocking::Within<#value>> },
                quote! { #done.map(crate::blocking::Within::of) },
            ),
            None => (quote! { crate::Result<::std::option::Option<#value>> }, done),
        }
    }
}

/// The output of an `impl Future<Output = T>`.
fn future_of(declared: &Type) -> Option<Type> {
    let Type::ImplTrait(bounds) = declared else { return None };
    bounds.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else { return None };
        let last = bound.path.segments.last().filter(|last| last.ident == "Future")?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(output) => Some(output.ty.clone()),
            _ => None,
        })
    })
}

/// The `T` of an `outer<T>`.
fn only_argument(declared: &Type, outer: &str) -> Option<Type> {
    let last = last_of(declared).ok().filter(|last| last.ident == outer)?;
    match arguments_of(last).as_slice() {
        [value] => Some(value.clone()),
        _ => None,
    }
}

/// Puts the twin in the place of every type that has one, and remembers whether there was any.
struct Wrap<'a> {
    twins: &'a Twins,
    found: bool,
}

impl VisitMut for Wrap<'_> {
    fn visit_type_mut(&mut self, of: &mut Type) {
        // A twin is cheap to clone where the async API lends: it becomes an owned one.
        let lent = if let Type::Reference(TypeReference { elem, .. }) = of { elem } else { &*of };
        if let Type::Path(TypePath { path, .. }) = lent
            && let Some(last) = path.segments.last()
            && self.twins.has(&last.ident)
        {
            self.found = true;
            let twin = &last.ident;
            *of = parse_quote!(crate::blocking::#twin);
            return;
        }
        visit_mut::visit_type_mut(self, of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "so that a test passes what `parse_quote!` made")]
    fn written(item: ItemImpl) -> Result<String> {
        let Generate { twins, of } = parse_quote! { [Guard Held] #item };
        Ok(twins.of(of)?.to_string().replace(' ', ""))
    }

    #[test]
    fn every_public_method_has_a_twin() {
        let twin = written(parse_quote! {
            impl Mutex {
                pub fn ttl(mut self, ttl: Duration) -> Self { self }
                pub async fn try_lock(&self) -> Result<Option<Guard>> { loop {} }
                pub fn release_leaving(self, memo: Memo) -> impl Future<Output = Result<Released>> + Send { loop {} }
                pub fn held(&self) -> Held { loop {} }
                pub fn weakest(&self) -> Option<&Held> { loop {} }
                pub fn resource(&self) -> &ResourceName { loop {} }
                pub(crate) fn mine(&self) {}
                fn private(&self) {}
                #[blocking(by_hand)]
                pub async fn with<F>(&self, body: F) -> Result<()> { loop {} }
                #[blocking(none)]
                pub fn poll(&self) {}
            }
        })
        .unwrap();
        for name in ["pubfnttl(mutself", "pubfntry_lock(&self", "pubfnrelease_leaving(self"] {
            assert!(twin.contains(name), "{name} is not in {twin}");
        }
        assert!(twin.contains("Result<Option<crate::blocking::Guard>>"), "{twin}");
        assert!(twin.contains("Result<Released>"), "{twin}");
        assert!(twin.contains("->crate::blocking::Held{"), "{twin}");
        assert!(twin.contains("->Option<crate::blocking::Held>{"), "what is lent is owned: {twin}");
        assert!(twin.contains("->&ResourceName{"), "what has no twin stays as it is: {twin}");
        for name in ["asyncfn", "mine", "private", "fnwith", "by_hand", "poll"] {
            assert!(!twin.contains(name), "{name} is in {twin}");
        }
    }

    #[test]
    fn a_twin_by_hand_must_exist() {
        let twin = written(parse_quote! { impl Guard { #[blocking(by_hand)] pub fn with(&self) {} } }).unwrap();
        assert!(twin.contains("const_:()=<crate::blocking::Guard>::WITH_BY_HAND;"), "{twin}");
    }

    #[test]
    fn a_wait_for_an_event_has_a_bounded_form() {
        let twin = written(parse_quote! {
            impl Held {
                #[blocking(within)]
                pub async fn lost(&self) -> LossReason { loop {} }
                #[blocking(within)]
                pub async fn asked_to_end(&self) -> Option<Ending> { loop {} }
            }
        })
        .unwrap();
        let bounded = "(&self,patience:::std::time::Duration)->crate::Result<";
        assert!(twin.contains("lost(&self)->crate::Result<LossReason>"), "{twin}");
        assert!(twin.contains(&format!("lost_within{bounded}::std::option::Option<LossReason>>")), "{twin}");
        assert!(twin.contains("asked_to_end(&self)->crate::Result<Option<Ending>>"), "{twin}");
        assert!(twin.contains(&format!("asked_to_end_within{bounded}crate::blocking::Within<Ending>>")), "{twin}");
    }

    #[test]
    fn the_documentation_is_kept_without_what_is_async() {
        let twin = written(parse_quote! {
            impl Mutex {
                /// Resolves when it is taken.
                ///
                /// # Cancel safety
                /// Left behind.
                ///
                /// # Errors
                /// Busy.
                ///
                /// # Examples
                /// ```
                /// # use hidden;
                /// awaited
                /// ```
                pub async fn lock(&self) -> Result<Guard> { loop {} }
            }
        })
        .unwrap();
        for line in ["Returnswhenitistaken.", "#Errors", "Busy.", "[`Mutex::lock`]", "backgroundthread"] {
            assert!(twin.contains(line), "{line} is not in {twin}");
        }
        for line in ["Cancel", "Left", "Examples", "hidden", "awaited"] {
            assert!(!twin.contains(line), "{line} is in {twin}");
        }
    }

    #[test]
    fn what_cannot_be_written_must_say_so() {
        let error = written(parse_quote! { impl Multi { pub fn of(part: Part) -> Self { loop {} } } }).unwrap_err();
        assert!(error.to_string().contains("by_hand"), "{error}");
        let error = written(parse_quote! { impl Multi { #[blocking(skip)] pub fn of(self) {} } }).unwrap_err();
        assert!(error.to_string().contains("expected `within`, `by_hand` or `none`"), "{error}");
    }

    #[test]
    fn what_is_declared_has_a_twin() {
        let two = [
            parse_quote! { pub type Mutex = Blocking<crate::Mutex>; },
            parse_quote! { pub type Guard = BlockingGuard<crate::Guard, crate::Held>; },
        ];
        let declared = declared(&two).unwrap().to_string().replace(' ', "");
        assert!(declared.contains("implTwinforcrate::Mutex{typeBlocking=Mutex;"), "{declared}");
        assert!(declared.contains("oarlock_macros::generate!{[MutexGuard]$($item)*}"), "{declared}");
    }
}
