"""What the doors are, for machines and people: OpenAPI, AsyncAPI and the page that shows both."""
