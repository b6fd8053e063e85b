//! Writes the blocking API of `oarlock-core` from its async one. Not for use elsewhere.
//!
//! `#[blocking]` on an `impl` block writes a second one, for `crate::blocking::Blocking<T>`, with a method for each public method of the
//! first: the same name and arguments, without `async`. So the blocking API cannot lack a method. A method that cannot be
//! written this way, because an argument is async itself, says so: `#[blocking(by_hand)]`.

use proc_macro::TokenStream;
use proc_macro2::{Ident, TokenStream as Tokens};
use quote::{format_ident, quote};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Error, FnArg, GenericArgument, ImplItem, ImplItemFn, ItemImpl, Pat, PathArguments, ReceiverKind, Result,
    ReturnType, Type, TypeParamBound, TypePath, TypeReference, Visibility, parse_quote,
};

/// Types of the async API that have a twin in `crate::blocking`: the name of both, the path of the async one, and what
/// the twin is.
const TWINS: &[(&str, &str, &str)] = &[
    ("Locks", "crate::Locks", "Locks on one store. Cheap to clone; every clone is the same client."),
    ("Mutex", "crate::Mutex", "A lock with one holder at a time."),
    ("RwLock", "crate::RwLock", "A lock with many readers or one writer."),
    ("Semaphore", "crate::Semaphore", "A lock of a number of units, of which each holder takes some."),
    ("Election", "crate::Election", "An election of one leader among many candidates."),
    ("Once", "crate::Once", "Work that is done once per slot."),
    ("Multi", "crate::Multi", "Several locks that are taken as one."),
    (
        "Part",
        "crate::Part",
        "One lock of a [`Multi`]: a mutex, [`RwLock::for_reading`], [`RwLock::for_writing`] or [`Semaphore::permits`].",
    ),
    (
        "ReentrantMutex",
        "crate::ReentrantMutex",
        "A mutex that its owner can enter again. For a thread as the owner: [`ThreadMutex`].",
    ),
    (
        "ReentrantRwLock",
        "crate::ReentrantRwLock",
        "A read-write lock that its owner can enter again. For a thread as the owner: [`ThreadRwLock`].",
    ),
    (
        "Guard",
        "crate::Guard",
        "A held lock; dropping it releases the lock, and never blocks. Its state is in [`Held`](crate::Held).",
    ),
    (
        "Held",
        "crate::Held",
        "The state of a held lock, for other threads. Cheap to clone; dropping it does nothing to the lock.",
    ),
    ("WriteGuard", "crate::WriteGuard", "A held lock of a writer: it can become a reader's."),
    ("MultiGuard", "crate::MultiGuard", "Several held locks."),
    ("MultiHeld", "crate::MultiHeld", "The state of several held locks, for other threads."),
    ("ReentrantGuard", "crate::ReentrantGuard", "One entry of an owner in a re-entrant lock."),
    ("Leadership", "crate::Leadership", "The leadership of an election; dropping it resigns."),
    ("LeaderWatch", "crate::LeaderWatch", "Follows the leader of an election."),
    ("Watch", "crate::driver::Watch", "Reports when a resource may have changed."),
];

/// Writes the type of every twin, and the `Twin` that turns a value of the async API into it.
#[proc_macro]
pub fn twins(_: TokenStream) -> TokenStream {
    let twins = TWINS.iter().map(|(name, path, doc)| {
        let (name, path) = (format_ident!("{name}"), syn::parse_str::<syn::Path>(path)?);
        Ok(quote! {
            #[doc = #doc]
            pub type #name = Blocking<#path>;

            impl Twin for #path {
                type Blocking = #name;

                fn twin(self, runtime: &Runtime) -> #name {
                    Blocking { inner: self, runtime: runtime.clone() }
                }
            }
        })
    });
    twins.collect::<Result<Tokens>>().unwrap_or_else(Error::into_compile_error).into()
}

/// Writes the blocking twin of an `impl` block; see the [crate](self).
#[proc_macro_attribute]
pub fn blocking(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut item = syn::parse_macro_input!(item as ItemImpl);
    match twin_of(&mut item) {
        Ok(twin) => quote! { #item #twin }.into(),
        Err(error) => {
            let error = error.into_compile_error();
            quote! { #item #error }.into()
        }
    }
}

fn twin_of(item: &mut ItemImpl) -> Result<Tokens> {
    let of = name_of(&item.self_ty)?;
    let mut methods = Vec::new();
    for member in &mut item.items {
        let ImplItem::Fn(method) = member else { continue };
        let by_hand = take_by_hand(&mut method.attrs)?;
        if matches!(method.vis, Visibility::Public(_)) && !by_hand {
            methods.push(method_twin(&of, method)?);
        }
    }
    Ok(quote! {
        impl crate::blocking::Blocking<crate::#of> {
            #(#methods)*
        }
    })
}

/// The last segment of a path, also behind the invisible brackets that a macro leaves around a type.
fn name_of(of: &Type) -> Result<Ident> {
    match of {
        Type::Group(group) => name_of(&group.elem),
        Type::Path(TypePath { path, .. }) if !path.segments.is_empty() => path
            .segments
            .last()
            .map(|last| last.ident.clone())
            .ok_or_else(|| Error::new_spanned(path, "a name is missing")),
        _ => Err(Error::new_spanned(of, "only an impl of a named type has a blocking twin")),
    }
}

/// Whether the method is marked `#[blocking(by_hand)]`; the mark is removed.
fn take_by_hand(attrs: &mut Vec<Attribute>) -> Result<bool> {
    let Some(at) = attrs.iter().position(|attr| attr.path().is_ident("blocking")) else { return Ok(false) };
    let mark: Ident = attrs.remove(at).parse_args()?;
    if mark == "by_hand" { Ok(true) } else { Err(Error::new_spanned(mark, "expected `by_hand`")) }
}

fn method_twin(of: &Ident, method: &ImplItemFn) -> Result<Tokens> {
    let name = &method.sig.ident;
    let Some(receiver) = method.sig.receiver() else {
        return Err(Error::new_spanned(name, "a function without self is `#[blocking(by_hand)]`"));
    };
    let mut names = Vec::new();
    for input in &method.sig.inputs {
        let FnArg::Typed(argument) = input else { continue };
        let Pat::Ident(pattern) = &*argument.pat else {
            return Err(Error::new_spanned(argument, "a method with patterns is `#[blocking(by_hand)]`"));
        };
        names.push(pattern.ident.clone());
    }
    let parts = match &receiver.kind {
        ReceiverKind::Value => quote! { let Self { inner, runtime } = self; let runtime = &runtime; },
        ReceiverKind::Reference(_, _, None) => quote! { let (inner, runtime) = (&self.inner, &self.runtime); },
        ReceiverKind::Reference(_, _, Some(_)) => quote! { let (inner, runtime) = (&mut self.inner, &self.runtime); },
        _ => return Err(Error::new_spanned(receiver, "a method of another self is `#[blocking(by_hand)]`")),
    };
    let answer = Answer::of(method)?;
    let (output, body) = answer.twin(&quote! { inner.#name(#(#names),*) });
    let mut signature = method.sig.clone();
    signature.asyncness = None;
    signature.output = parse_quote!(-> #output);
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first_mut() {
        receiver.mutability = None;
    }
    let kept = method.attrs.iter().filter(|attr| attr.path().is_ident("must_use"));
    let see = format!("The blocking twin of [`{of}::{name}`](crate::{of}::{name}).");
    let errors = answer.fails().then(|| {
        let text = "As there; [`ErrorKind::Config`](crate::ErrorKind::Config) on the engine's own thread.";
        quote! { #[doc = ""] #[doc = "# Errors"] #[doc = #text] }
    });
    Ok(quote! {
        #[doc = #see]
        #errors
        #(#kept)*
        pub #signature {
            #parts
            #body
        }
    })
}

/// What a method answers.
struct Answer {
    /// It has to be waited for.
    waits: bool,
    /// The `T` of a `Result<T>`, or all of it.
    value: Type,
    is_result: bool,
}

impl Answer {
    fn of(method: &ImplItemFn) -> Result<Self> {
        let declared: Type = match &method.sig.output {
            ReturnType::Default => parse_quote!(()),
            ReturnType::Type(_, declared) => Type::clone(declared),
        };
        let (waits, declared) = match future_of(&declared) {
            Some(output) => (true, output),
            None => (method.sig.asyncness.is_some(), declared),
        };
        Ok(match result_of(&declared) {
            Some(value) => Self { waits, value, is_result: true },
            None => Self { waits, value: declared, is_result: false },
        })
    }

    fn fails(&self) -> bool {
        self.is_result || self.waits
    }

    /// What its twin returns, and how.
    fn twin(&self, call: &Tokens) -> (Tokens, Tokens) {
        if matches!(&self.value, Type::Path(path) if path.path.is_ident("Self")) {
            return (quote! { Self }, quote! { Self { inner: #call, runtime: runtime.clone() } });
        }
        let (mut value, mut wrap) = (self.value.clone(), Wrap(false));
        wrap.visit_type_mut(&mut value);
        let answer = match (self.waits, self.is_result) {
            (true, true) => quote! { runtime.block_on(#call)? },
            (true, false) => quote! { runtime.block_on(#call) },
            (false, _) => quote! { let _ = runtime; #call },
        };
        match (self.fails(), wrap.0) {
            (true, true) => (
                quote! { crate::Result<#value> },
                quote! { #answer.map(|done| crate::blocking::Twin::twin(done, runtime)) },
            ),
            (true, false) => (quote! { crate::Result<#value> }, answer),
            (false, true) => (quote! { #value }, quote! { crate::blocking::Twin::twin(#call, runtime) }),
            (false, false) => (quote! { #value }, answer),
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

/// The `T` of a `Result<T>`.
fn result_of(declared: &Type) -> Option<Type> {
    let Type::Path(TypePath { path, .. }) = declared else { return None };
    let last = path.segments.last().filter(|last| last.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match (arguments.args.first(), arguments.args.len()) {
        (Some(GenericArgument::Type(value)), 1) => Some(value.clone()),
        _ => None,
    }
}

/// Puts the twin in the place of every type that has one, and remembers whether there was any.
struct Wrap(bool);

impl VisitMut for Wrap {
    /// A borrowed value stays one of the async API: its twin would have to own it.
    fn visit_type_reference_mut(&mut self, _: &mut TypeReference) {}

    fn visit_type_path_mut(&mut self, path: &mut TypePath) {
        if let Some(last) = path.path.segments.last()
            && TWINS.iter().any(|(twin, ..)| last.ident == twin)
        {
            self.0 = true;
            let twin = format_ident!("{}", last.ident);
            *path = parse_quote!(crate::blocking::#twin);
            return;
        }
        visit_mut::visit_type_path_mut(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(mut item: ItemImpl) -> Result<String> {
        Ok(twin_of(&mut item)?.to_string().replace(' ', ""))
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
                pub(crate) fn mine(&self) {}
                fn private(&self) {}
                #[blocking(by_hand)]
                pub async fn with<F>(&self, body: F) -> Result<()> { loop {} }
            }
        })
        .unwrap();
        for name in ["pubfnttl(self", "pubfntry_lock(&self", "pubfnrelease_leaving(self"] {
            assert!(twin.contains(name), "{name} is not in {twin}");
        }
        assert!(twin.contains("Result<Option<crate::blocking::Guard>>"), "{twin}");
        assert!(twin.contains("Result<Released>"), "{twin}");
        assert!(twin.contains("->crate::blocking::Held{"), "{twin}");
        assert!(twin.contains("->Option<&Held>{"), "what is borrowed stays as it is: {twin}");
        for name in ["async", "mine", "private", "fnwith", "by_hand"] {
            assert!(!twin.contains(name), "{name} is in {twin}");
        }
    }

    #[test]
    fn what_cannot_be_written_must_say_so() {
        let error = written(parse_quote! { impl Multi { pub fn of(part: Part) -> Self { loop {} } } }).unwrap_err();
        assert!(error.to_string().contains("by_hand"), "{error}");
        let error = written(parse_quote! { impl Multi { #[blocking(skip)] pub fn of(self) {} } }).unwrap_err();
        assert!(error.to_string().contains("expected `by_hand`"), "{error}");
    }
}
